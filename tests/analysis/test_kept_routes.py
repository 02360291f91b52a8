"""Routes of matrix products are chosen once on a machine: kept, shared by processes, renewed on request, never trusted
where a file is not as Weft wrote it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from comparison.studies import LSTM as SMALL
from comparison.studies import run, study_of, write_text
from fresh import Fresh
from training.tiny_runs import ATTENTION, same_weights, tiny_run
from weft.analysis import matmul
from weft.analysis.arithmetic import threads_set
from weft.analysis.capabilities import doctor
from weft.analysis.kept_routes import KeptRoute, RouteCache
from weft.analysis.matmul import Timing, as_kept, chosen_once, renew
from weft.core.errors import ConfigError
from weft.ops.linear import Product
from weft.training import Notice, train

FORWARD = Product("forward", 8, 4, 6, "torch.float32")
WEIGHT = FORWARD._replace(which="weight")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def measures(monkeypatch: pytest.MonkeyPatch, *routes: str) -> list[Product]:
    """Let measurements find these routes, one after the other and again from the first; what is measured."""
    asked: list[Product] = []

    def timing(product: Product, clock: object) -> Timing:
        asked.append(product)
        route = routes[(len(asked) - 1) % len(routes)]
        return Timing(str(product), {"reference": 1.0, route: 2.0}, {}, route)

    monkeypatch.setattr(matmul, "_timing", timing)
    return asked


def chosen(*products: Product) -> dict[Product, str]:
    """The routes of products, of which nothing is told."""
    return chosen_once(products, lambda text: pytest.fail(text))


def file() -> Path:
    return RouteCache().folder / "forward-8x4x6-float32.json"


def test_a_route_is_measured_once_and_the_same_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measures(monkeypatch, "onednn", "switched", "reference")
    assert chosen(FORWARD) == {FORWARD: "onednn"} == chosen(FORWARD, FORWARD)
    assert chosen(FORWARD, WEIGHT) == {FORWARD: "onednn", WEIGHT: "switched"} and asked == [FORWARD, WEIGHT]
    with threads_set(torch.get_num_threads() + 1):
        assert chosen(FORWARD) == {} == chosen(FORWARD), "with other threads another route may be the fastest"
    monkeypatch.setattr(torch, "__version__", "99.1+cpu")
    assert chosen(FORWARD) == {FORWARD: "onednn"} and len(asked) == 4
    assert "-torch-99.1-cpu-" in RouteCache().folder.name


def test_one_command_gives_one_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Although a measurement finds other routes each time."""
    measures(monkeypatch, "onednn", "switched", "reference", "switched")
    run = tiny_run(tmp_path, ATTENTION, compute={"matmul": "auto"})
    first, second = train(run, tmp_path / "one"), train(run, tmp_path / "two")
    routes = [json.loads((tmp_path / name / "run.json").read_text())["compute"]["routes"] for name in ("one", "two")]
    assert routes[0] == routes[1] and set(routes[0].values()) == {"onednn", "switched"}
    assert same_weights(first.model, second.model)


def first_of(order: list[str]) -> None:
    """Choose the routes of ten products, as a process whose measurements find the routes of ``order`` in turn."""
    with pytest.MonkeyPatch.context() as patch:
        measures(patch, *order)
        products = [FORWARD._replace(rows=rows) for rows in range(1, 11)]
        print({product.rows: route for product, route in chosen(*products).items()})


def test_processes_that_measure_at_once_agree(cache: Path, tmp_path: Path) -> None:
    orders = (["onednn", "switched"], ["switched", "onednn"], ["onednn", "reference"], ["reference"])
    here = {"WEFT_CACHE_DIR": str(cache)}
    ended = [each.end() for each in [Fresh(first_of, order, folder=tmp_path, environment=here) for order in orders]]
    assert len({each.stdout for each in ended}) == 1 and ended[0].stdout.strip(), ended
    assert not list(cache.rglob(".*")), "drafts are deleted"


def test_a_process_that_comes_second_takes_what_the_first_has_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def timing(product: Product, clock: object) -> Timing:
        RouteCache().keep(KeptRoute(str(product), "switched", 1.5, "2026-01-01"))
        return Timing(str(product), {"reference": 1.0, "onednn": 2.0}, {}, "onednn")

    monkeypatch.setattr(matmul, "_timing", timing)
    assert chosen(FORWARD) == {FORWARD: "switched"}


def test_a_study_keeps_its_routes_when_it_grows_and_measures_with_its_own_threads(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each model's are settled in the study, whatever the cache says later; equal shapes of another model take what the
    first measurement found."""
    threads: list[int] = []
    asked = measures(monkeypatch, "onednn", "switched", "reference", "switched")
    timing = matmul._timing
    monkeypatch.setattr(matmul, "_timing", lambda *given: threads.append(torch.get_num_threads()) or timing(*given))
    text, out, auto = write_text(tmp_path), tmp_path / "study", {"compute": {"matmul": "auto"}, "batch_size": 2}

    def grown(*names: str) -> list[dict[str, str]]:
        with threads_set(2):  # the study's option is one thread
            run(study_of(text, {name: {"config": SMALL} for name in names}, training=auto), out)
        runs = [yaml.safe_load((out / f"configs/{name}.yaml").read_text()) for name in names]
        return [each["training"]["compute"]["routes"] for each in runs]

    first, second = grown("a", "b")
    assert set(first.values()) == {"onednn", "switched"} and first == second and set(threads) == {1}
    once = len(asked)
    assert grown("a", "b", "c") == [first] * 3 and len(asked) == once
    for path in RouteCache().folder.parent.rglob("*.json"):
        path.unlink()
    assert grown("a", "b", "c", "d")[:3] == [first] * 3 and len(asked) > once


def test_where_nothing_can_be_kept_products_take_pytorchs_own_route_and_training_says_so(
        monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path) -> None:
    """A measurement that is not kept would let the next run of the same command end in other weights."""
    cache.write_text("a file where the folder should be")
    asked, notices = measures(monkeypatch, "onednn"), list[str]()
    train(tiny_run(tmp_path, ATTENTION, compute={"matmul": "auto"}), tmp_path / "run",
          on_event=lambda event: notices.append(event.text) if isinstance(event, Notice) else None)
    assert asked == [] and json.loads((tmp_path / "run/run.json").read_text())["compute"]["matmul"] == "default"
    told, = (text for text in notices if "matrix products" in text)
    assert told.startswith("15 of 15 matrix products take PyTorch's own route, which may be slower, since what is "
                           f"measured cannot be kept: {RouteCache().folder} cannot be used (Not a directory). Name a f")
    assert cache.read_text() == "a file where the folder should be"


def damages() -> Iterator[tuple[str, bytes]]:
    """Contents of a file that Weft has not written like that, from what it wrote."""
    text = file().read_text()
    yield "emptied", b""
    yield "cut", text[:-20].encode()
    yield "other bytes", b"\xff\x00" * 40
    yield "nested", b"[" * 100_000
    yield "a list", b"[]"
    yield "another route", text.replace('"onednn",\n "gain"', '"switched",\n "gain"').encode()
    yield "another machine's", text.replace('"threads": ', '"threads": 1').encode()
    yield "no hash", json.dumps({"route": "onednn"}).encode()


def refused(path: Path) -> None:
    """A file is not trusted and stays as it is, and the error names it."""
    before, told = path.read_bytes(), list[str]()
    assert chosen_once([FORWARD], told.append) == {}
    assert told == ["1 of 1 matrix products take PyTorch's own route, which may be slower, since what is measured "
                    f"cannot be kept: {path} was changed or is another user's, so it is not read. Move it away, and "
                    "the product is measured again."]
    renew()
    assert path.read_bytes() == before
    assert any(str(path) in warning for warning in doctor(measure=False).warnings)


def test_a_damaged_or_foreign_file_is_neither_trusted_nor_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    measures(monkeypatch, "onednn")
    chosen(FORWARD)
    whole = file().read_bytes()
    for name, content in damages():
        assert content != whole, name
        file().write_bytes(content)
        refused(file())
    file().write_bytes(whole)
    assert chosen(FORWARD) == {FORWARD: "onednn"}
    file().chmod(0o666)
    refused(file())
    file().chmod(0o600)
    file().rename(other := file().with_suffix(".moved"))
    file().symlink_to(other)
    refused(file())
    file().unlink()
    file().with_name("weight-8x4x6-float32.json").write_bytes(whole)
    assert chosen_once([WEIGHT], lambda text: None) == {}, "of another product"


def test_routes_are_renewed_and_shown_on_request(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    measures(monkeypatch, "onednn", "switched")
    chosen(FORWARD, WEIGHT)
    found = doctor(measure=False)
    assert [(each.product, each.route, each.gain) for each in found.kept] == [
        ("forward 8x4x6 float32", "onednn", 2.0), ("weight 8x4x6 float32", "switched", 2.0)]
    assert found.kept_in.parent == cache / "routes" and len(list(found.kept_in.iterdir())) == 2
    timing = Timing(str(WEIGHT), {"reference": 1.0, "onednn": 2.0}, {}, "onednn")
    assert [each.route for each in as_kept([timing])] == ["switched"], "what a run takes is shown"
    measures(monkeypatch, "reference")
    assert [each.route for each in doctor(measure=False, renew_routes=True).kept] == ["reference"] * 2
    assert chosen(FORWARD, WEIGHT) == {} and len(list(found.kept_in.iterdir())) == 2


def test_what_cannot_be_renewed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    measures(monkeypatch, "onednn")
    chosen(FORWARD)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match=r"the routes in .*routes/.* cannot be renewed \(.*No space left on device\)"):
        renew()

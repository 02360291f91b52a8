"""A run goes on as it began: threads and matrix products are reused, anything else that changed is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from training.tiny_runs import LSTM, same_weights, tiny_run
from weft.checkpoints import load_checkpoint
from weft.core.errors import CheckpointError, UnsupportedError
from weft.ops.linear import ROUTING, Product
from weft.training import Event, Notice, parse_run, train
from weft.training.compute import Compute
from weft.training.loop import Run


def record(out: Path, **changes: Any) -> dict[str, Any]:
    """What run.json says; ``changes`` are made in it first, in its own fields or those of ``compute``."""
    file = out / "run.json"
    content: dict[str, Any] = json.loads(file.read_text())
    for name, value in changes.items():
        place = content["compute"] if name in content["compute"] else content["software"]
        place[name] = value
    file.write_text(json.dumps(content))
    return content


@pytest.fixture
def halfway(tmp_path: Path) -> Path:
    """The folder of a run whose last checkpoint is that of step 10 of 20."""
    train(tiny_run(tmp_path, LSTM), tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/00000020")
    if not (tmp_path / "run/checkpoints/00000010").exists():  # step 20 was the best
        shutil.rmtree(tmp_path / "run")
        run = parse_run(tiny_run(tmp_path, LSTM).dump(), ["report.keep=1"])
        train(run, tmp_path / "run")
        shutil.rmtree(tmp_path / "run/checkpoints/00000020")
    return tmp_path / "run"


def config_of(out: Path) -> Any:
    return parse_run(json.loads((out / "run.json").read_text())["config"])


def test_threads_and_matrix_products_are_those_the_run_began_with(
        halfway: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    routes = {"forward 8x4x6 float32": "onednn"}
    recorded = record(halfway, threads=threads + 1, matmul="measured", routes=routes)["compute"]
    used: list[tuple[int, dict[Product, str]]] = []
    evaluate = Run.evaluate

    def watched(run: Run, *args: Any) -> Any:
        assert ROUTING.routes is not None
        used.append((torch.get_num_threads(), ROUTING.routes.known))
        return evaluate(run, *args)

    monkeypatch.setattr(Run, "evaluate", watched)
    monkeypatch.setattr(Compute, "choose", lambda *_, **__: pytest.fail("nothing is chosen anew"))
    train(config_of(halfway), halfway, resume=True)
    assert used == [(threads + 1, {Product("forward", 8, 4, 6, "torch.float32"): "onednn"})]
    assert torch.get_num_threads() == threads
    assert record(halfway)["compute"] == recorded


@pytest.mark.parametrize(("name", "value", "told"), [
    ("torch_version", "1.0", r"run\.json: compute: the run began with torch_version '1\.0' \(here '2"),
    ("processor", "Babbage", "the run began with processor 'Babbage'"),
    ("device", "cuda", r"the run began with device 'cuda' \(here 'cpu'\)"),
    ("cpu_capability", "AVX1024", r"the run began with cpu capability 'AVX1024' \(here"),
    ("weft", "9.9", r"the run began with weft '9\.9' \(here"),
])
def test_what_cannot_be_had_here_is_refused_and_nothing_is_changed(
        halfway: Path, name: str, value: str, told: str) -> None:
    record(halfway, **{name: value})
    before = {path: path.read_bytes() for path in halfway.rglob("*") if path.is_file() and path.name != ".lock"}
    with pytest.raises(UnsupportedError, match=told + r".*cannot go on to the same weights.*--allow-inexact"):
        train(config_of(halfway), halfway, resume=True)
    assert before == {path: path.read_bytes() for path in before}


def test_allowed_it_goes_on_and_says_so_for_good(halfway: Path) -> None:
    record(halfway, torch_version="1.0", threads=1)
    notices: list[Event] = []
    train(config_of(halfway), halfway, resume=True, allow_inexact=True,
          on_event=lambda event: notices.append(event) if isinstance(event, Notice) else None)
    now = record(halfway)
    assert now["compute"]["torch_version"] == torch.__version__ and now["compute"]["threads"] == 1
    entry, = now["inexact"]
    assert entry["step"] == 10 and "torch_version '1.0'" in entry["reason"]
    assert [(notice.step, notice.line()) for notice in notices] == [
        (10, f"{entry['reason']} Going on as allowed: the weights will not be those of an uninterrupted run.")]
    told = [json.loads(line) for line in (halfway / "metrics.jsonl").read_text().splitlines()]
    assert any(event["event"] == "notice" and "torch_version '1.0'" in event["text"] for event in told)
    assert len(train(config_of(halfway), halfway, resume=True).config.model_dump()) > 0, "exact again from here"
    assert record(halfway)["inexact"] == [entry]


def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    run = parse_run(tiny_run(tmp_path, LSTM).dump(), ["report.keep=3"])
    whole, out = train(run, tmp_path / "whole"), tmp_path / "run"
    train(run, out)
    last = out / "checkpoints/00000020"
    (last / "model.safetensors").write_bytes(b"\0" * 10)
    notices: list[str] = []
    resumed = train(run, out, resume=True,
                    on_event=lambda event: notices.append(event.line()) if isinstance(event, Notice) else None)
    assert same_weights(resumed.model, whole.model)
    line, = notices
    assert f"the checkpoint {last} is damaged, and is now {out}/checkpoints/damaged-00000020" in line
    assert "model.safetensors is truncated: 10 bytes instead of" in line and "going on from step 10" in line
    assert (out / "checkpoints/damaged-00000020/model.safetensors").stat().st_size == 10
    # A second one gets a name of its own, also when its configuration is missing altogether.
    (last / "config.json").unlink()
    assert same_weights(train(run, out, resume=True).model, whole.model)
    assert (out / "checkpoints/damaged-00000020-2").is_dir()
    assert load_checkpoint(out).facts["step"] == 20


def test_a_run_without_any_whole_checkpoint_is_refused_as_it_is(tmp_path: Path) -> None:
    run = parse_run(tiny_run(tmp_path, LSTM).dump(), ["report.keep=3"])
    train(run, tmp_path / "run")
    for checkpoint in (tmp_path / "run/checkpoints").iterdir():
        (checkpoint / "training.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"(?s)no checkpoint of the run is whole:.*00000020.*00000010.*training"
                                              r"\.safetensors is missing.*Put a copy of one back"):
        train(run, tmp_path / "run", resume=True)
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == ["00000010", "00000020"]


def test_an_evaluation_that_an_interrupt_skipped_is_made_up_for(tmp_path: Path) -> None:
    """The checkpoint of Ctrl-C in step 10, where an evaluation is due, has none."""
    run = parse_run(tiny_run(tmp_path, LSTM).dump(), ["report.keep=3"])
    train(run, tmp_path / "run")
    file = tmp_path / "run/checkpoints/00000010"
    facts = load_checkpoint(file).facts["validation"]
    shutil.rmtree(tmp_path / "run/checkpoints/00000020")

    def interrupt(event: Event) -> None:
        if event.step == 10:
            import signal
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "other", on_event=lambda event: interrupt(event) if event.name == "progress" else None)
    assert load_checkpoint(tmp_path / "other").facts["validation"] is None
    train(run, tmp_path / "other", resume=True)
    assert load_checkpoint(tmp_path / "other/checkpoints/00000010").facts["validation"] == facts

"""How a run computes: routes by measurement, what is put back, what is recorded and refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.testing import assert_close

from weft.analysis import matmul
from weft.analysis.matmul import Timing, timed
from weft.api.configs import read_run
from weft.core.errors import CheckpointError, ConfigError, UnsupportedError
from weft.ops.forms import OPERATIONS
from weft.ops.linear import LINEAR, LinearCall, Product, Which
from weft.ops.processor import processor_name
from weft.ops.products import PRODUCT
from weft.training.compute import Compute, ComputeSettings, same_bits
from weft.training.step_products import products_of

MATMUL = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
FORWARD = Product("forward", 8, 4, 6, "torch.float32")


def here(**changes: Any) -> Compute:
    return replace(Compute.choose(ComputeSettings(matmul="default")), **changes)


class Script:
    """A clock by which the calls that are timed take the seconds given, one after the other."""

    def __init__(self, *seconds: float) -> None:
        self._left, self._now, self._begun = list(seconds), 0.0, False

    def __call__(self) -> float:
        if self._begun:
            self._now += self._left.pop(0)
        self._begun = not self._begun
        return self._now


def in_turns(**seconds: list[float]) -> Script:
    """By route, the seconds of its turns; routes are asked in the order of the registry."""
    order = [form.name for form in PRODUCT.forms() if form.dtypes is None or torch.float32 in form.dtypes]
    assert sorted(seconds) == sorted(order)
    return Script(*(each for turn in zip(*(seconds[name] for name in order), strict=True) for each in turn))


@pytest.mark.parametrize(("onednn", "switched", "route"), [
    ([0.05] * 5, [0.2] * 5, "onednn"),
    ([0.098] * 5, [0.097] * 5, "reference"),
    ([0.2] * 5, [0.06, 0.3, 0.06, 0.06, 0.3], "switched"),
    ([0.05, 0.2, 0.2, 0.2, 0.05], [0.2] * 5, "reference"),
], ids=["faster", "hardly faster", "disturbed", "fast now and then"])
def test_the_route_of_a_product_is_the_fastest_in_the_median_turn(onednn: list[float], switched: list[float],
                                                                  route: str) -> None:
    """Five turns of nine, since they take longer than the least time."""
    found, = timed([FORWARD], in_turns(onednn=onednn, switched=switched, reference=[0.1] * 5))
    assert found.route == route and found.product == "forward 8x4x6 float32"
    assert found.rates["reference"] == pytest.approx(2 * 8 * 4 * 6 / 0.1)


def test_a_route_is_not_taken_for_what_disturbed_the_others() -> None:
    """Three of five turns of PyTorch's own were disturbed; in the others it was as fast."""
    turns = {"reference": [0.1, 0.3, 0.3, 0.1, 0.3], "onednn": [0.1] * 5}
    assert matmul._choice(turns, {"reference": 3e-7, "onednn": 3e-7}) == "reference"


def test_a_route_that_rounds_is_not_taken_however_fast() -> None:
    turns = {"reference": [0.1] * 3, "switched": [0.01] * 3}
    assert matmul._choice(turns, {"reference": 3e-7, "switched": 9e-7}) == "switched"
    assert matmul._choice(turns, {"reference": 3e-7, "switched": 2e-3}) == "reference"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("which", ["forward", "input", "weight"])
def test_every_route_multiplies_the_product_that_it_is_timed_on(which: Which, dtype: torch.dtype) -> None:
    random, before = torch.get_rng_state(), MATMUL.fp32_precision
    found, = timed([Product(which, 70, 33, 47, str(dtype))])
    assert torch.equal(torch.get_rng_state(), random) and MATMUL.fp32_precision == before
    with torch.no_grad():
        call = matmul._call(Product(which, 70, 33, 47, str(dtype)))
        assert set(found.rates) == {form.name for form in PRODUCT.forms() if PRODUCT.can(form, call)} > {"reference"}
    # Some roundings of 2^-24, and one of 2^-9. Where a processor has tiles (AMX) oneDNN takes products of float32 from
    # numbers rounded to bfloat16 by one of the routes, which then is not the one that is taken.
    assert all(each < 2**-6 for each in found.errors.values())
    assert found.errors[found.route] < (1e-5 if dtype == torch.float32 else 2**-6)
    assert all(1e3 < rate < 1e15 for rate in found.rates.values()), "operations a second"


OLDER = """
import torch
from weft.analysis.matmul import timed
from weft.ops.linear import Product
for dtype in ("float32", "bfloat16"):
    print(*sorted(timed([Product("forward", 8, 4, 6, f"torch.{dtype}")])[0].rates))
"""


def test_an_older_processor_is_timed_on_the_routes_that_it_has() -> None:
    """With AVX2 alone oneDNN multiplies float32 and not bfloat16."""
    printed = subprocess.run([sys.executable, "-c", OLDER], check=True, text=True, stdout=subprocess.PIPE,
                             env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}).stdout
    assert printed.splitlines() == ["onednn reference switched", "reference wide"]


def test_auto_measures_the_products_of_the_run_once_and_nothing_where_routes_are_given(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Product] = []
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(matmul, "_timing", lambda product, clock: asked.append(product) or Timing(
        str(product), {"reference": 1.0, "onednn": 2.0}, {}, "onednn"))

    def choose(**settings: Any) -> Compute:
        return Compute.choose(ComputeSettings(**settings), products=lambda: [FORWARD])

    assert (choose().matmul, choose().routes) == ("measured", ((str(FORWARD), "onednn"),)) and asked == [FORWARD]
    asked.clear()
    assert choose(matmul="default").matmul == "default" and choose(matmul="onednn").routes == ()
    assert choose(routes={str(FORWARD): "switched"}).routes == ((str(FORWARD), "switched"),)
    assert choose(routes={}).matmul == "default"
    on_gpu = Compute.choose(ComputeSettings(), device="cuda", products=lambda: [FORWARD])
    double = Compute.choose(ComputeSettings(), dtype=torch.float64, products=lambda: [FORWARD])
    assert on_gpu.matmul == double.matmul == "default" and asked == []


def test_routes_are_copied_from_a_record_or_refused() -> None:
    with pytest.raises(ValidationError, match=r"'forward 8x4: onednn' is not a product and its route\. Copy them"):
        ComputeSettings(routes={"forward 8x4": "onednn"})
    with pytest.raises(ValidationError, match="'forward 8x4x6 float32: mkl' is not a product and its route"):
        ComputeSettings(routes={str(FORWARD): "mkl"})


def test_onednn_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"compute\.matmul: 'onednn', and this PyTorch is built without it\. Use 'au"):
        Compute.choose(ComputeSettings(matmul="onednn"))
    with pytest.raises(ConfigError, match="built without it"):
        here(matmul="onednn").require_here()


def test_what_is_in_force_inside_is_given_back_also_after_an_error() -> None:
    """A product takes its route, one of other rows that of the nearest, and one of another map PyTorch's."""
    threads = torch.get_num_threads()
    routes = {str(FORWARD): "onednn", str(FORWARD._replace(rows=1000)): "switched"}
    chosen = here(matmul="measured", threads=threads + 1, routes=tuple(routes.items()))

    def route(rows: int, outputs: int = 6) -> str:
        call = LinearCall(torch.ones(rows, 4), torch.ones(outputs, 4))
        with OPERATIONS.observed() as seen:
            assert_close(LINEAR(call), torch.full((rows, outputs), 4.0))
        return seen[-1].form

    assert route(8) == "library"
    with pytest.raises(ZeroDivisionError), chosen.apply():
        assert torch.get_num_threads() == threads + 1
        assert [route(8), route(20), route(900), route(8, 5)] == ["onednn", "onednn", "switched", "reference"]
        raise ZeroDivisionError
    assert torch.get_num_threads() == threads and route(8) == "library"
    with here(matmul="onednn").apply():
        assert route(8, 5) == "onednn"


def test_a_record_is_read_back_and_a_damaged_one_refused() -> None:
    chosen = here(compile=True)
    record = json.loads(json.dumps(chosen.to_json()))
    assert Compute.from_json(record) == chosen
    with pytest.raises(CheckpointError, match=r"run\.json: compute: cannot be read: threads\. Start the run again"):
        Compute.from_json({**record, "threads": "two"})
    with pytest.raises(CheckpointError, match="cannot be read: matmul"):
        Compute.from_json({**record, "matmul": "mkl"})
    with pytest.raises(CheckpointError, match="read: matmul, threads, torch_version, processor, device, compile"):
        Compute.from_json({})


def test_another_machine_is_refused_with_what_is_another() -> None:
    here().require_here()
    began = here(torch_version="1.0", processor="abacus")
    message = (f"run.json: compute: the run began with torch_version '1.0' (here '{torch.__version__}'), processor "
               f"'abacus' (here '{processor_name()}'), so it cannot go on to the same weights. Resume it")
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        began.require_here()
    with pytest.raises(UnsupportedError, match=r"began with device 'cuda' \(here 'cpu'\)"):
        here(device="cuda").require_here()


def test_a_record_without_routes_is_refused() -> None:
    record = here(matmul="onednn").to_json()
    assert Compute.from_json(record) == here(matmul="onednn")
    with pytest.raises(CheckpointError, match="cannot be read: routes"):
        Compute.from_json({name: value for name, value in record.items() if name != "routes"})
    with pytest.raises(CheckpointError, match="cannot be read: routes"):
        Compute.from_json({**record, "routes": {"forward": "onednn"}})


def test_the_products_of_a_run_are_those_of_its_maps_forward_and_backward() -> None:
    config = read_run("transformer", ["model.d_model=16", "model.context=8", "model.blocks.0.repeat=1",
                                      "model.blocks.0.of.0.layers.0.n_heads=2", "model.blocks.0.of.0.layers.1.d_ff=24",
                                      "tokenizer=bytes", "training.batch_size=3"])
    found = products_of(config)
    maps = {(16, 48): "queries, keys and values", (16, 16): "output", (16, 24): "gate and up", (24, 16): "down",
            (16, 256): "readout"}
    shapes = {(each.inputs, each.outputs) for each in found}
    assert {(24, 16), (16, 24), (16, 16)} < shapes and len(shapes) == 5, (shapes, maps)
    assert {each.rows for each in found} == {24} and {each.dtype for each in found} == {"torch.float32"}
    assert len(found) == 3 * len(shapes) and len({each.which for each in found}) == 3


def test_a_model_that_is_fitted_by_counting_has_no_products() -> None:
    assert products_of(read_run("ngram", ["tokenizer=bytes"])) == ()


def test_the_same_bits_are_required_inside_the_block_alone() -> None:
    with same_bits():
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_without_such_a_form_says_what_to_set() -> None:
    with pytest.raises(UnsupportedError, match=r"training\.compute\.repeatable: some_cuda does not have a determinist"
                                               r"ic implementation\. Set it to false"), same_bits():
        raise RuntimeError("some_cuda does not have a deterministic implementation, but you set")
    with pytest.raises(RuntimeError, match="another"), same_bits():
        raise RuntimeError("another")
    assert not torch.are_deterministic_algorithms_enabled()

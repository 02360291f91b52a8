"""How a run computes: routes by measurement, what is put back, what is recorded and refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from weft.core.errors import CheckpointError, ConfigError, UnsupportedError
from weft.ops.processor import processor_name
from weft.training import compute
from weft.training.compute import Compute, ComputeSettings, Measured, decide, measure_routes

PLAIN = Measured(100e9, 7e-7)
MATMUL = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]


def here(**changes: Any) -> Compute:
    return replace(Compute.choose(ComputeSettings(matmul="default")), **changes)


@pytest.mark.parametrize(("onednn", "route"), [
    (Measured(210e9, 9e-7), "onednn"),
    (Measured(119e9, 9e-7), "default"),
    (Measured(900e9, 2e-3), "default"),
    (None, "default"),
], ids=["faster", "hardly faster", "rounds", "missing"])
def test_auto_takes_onednn_where_it_is_faster_and_as_exact(onednn: Measured | None, route: str) -> None:
    assert decide("auto", PLAIN, onednn) == route


def test_onednn_that_was_asked_for_serves_or_says_why_not() -> None:
    assert decide("onednn", PLAIN, Measured(50e9, 9e-7)) == "onednn"
    with pytest.raises(ConfigError, match=r"compute\.matmul: 'onednn', and this PyTorch is built without it\. Use 'au"):
        decide("onednn", PLAIN, None)
    with pytest.raises(ConfigError, match=r"rounds to bfloat16 on this processor \(error 2e-03, PyTorch's default 7e-"):
        decide("onednn", PLAIN, Measured(900e9, 2e-3))


def test_routes_are_measured_and_float32_is_as_exact_as_it_should_be() -> None:
    before = MATMUL.fp32_precision
    default, onednn = measure_routes()
    assert MATMUL.fp32_precision == before
    # A random walk of 512 roundings of 6e-8, relative to the largest of 2^18 sums.
    assert 1e-8 < default.error < 1e-5
    assert default.rate > 1e8
    assert (onednn is None) == (not torch.backends.mkldnn.is_available())


def test_only_float32_on_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "measure_routes", lambda: (PLAIN, Measured(300e9, 9e-7)))
    assert Compute.choose(ComputeSettings()).matmul == "onednn"
    assert Compute.choose(ComputeSettings(), dtype=torch.bfloat16).matmul == "default"
    assert Compute.choose(ComputeSettings(), device="cuda").matmul == "default"
    assert Compute.choose(ComputeSettings(matmul="default")).matmul == "default"


def test_what_is_switched_is_put_back_also_after_an_error() -> None:
    before = (torch.get_num_threads(), MATMUL.fp32_precision)
    chosen = here(matmul="onednn", threads=before[0] + 1)
    with pytest.raises(ZeroDivisionError), chosen.apply():
        assert (torch.get_num_threads(), MATMUL.fp32_precision) == (before[0] + 1, "bf16")
        raise ZeroDivisionError
    assert (torch.get_num_threads(), MATMUL.fp32_precision) == before


def test_a_record_is_read_back_and_a_damaged_one_refused() -> None:
    chosen = here(compile=True)
    record = json.loads(json.dumps(chosen.to_json()))
    assert Compute.from_json(record) == chosen
    with pytest.raises(CheckpointError, match=r"run\.json: compute: cannot be read: threads\. Start the run again"):
        Compute.from_json({**record, "threads": "two"})
    with pytest.raises(CheckpointError, match="cannot be read: matmul"):
        Compute.from_json({**record, "matmul": "mkl"})
    with pytest.raises(CheckpointError, match="read: matmul, threads, compile, torch_version, processor, device"):
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


def test_a_route_that_is_inexact_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "measure_routes", lambda: (PLAIN, Measured(900e9, 2e-3)))
    with pytest.raises(ConfigError, match="rounds to bfloat16"):
        here(matmul="onednn").require_here()

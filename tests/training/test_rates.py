"""Model FLOPs utilisation and memory, against what they are made of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.tiny_runs import ATTENTION, tiny_run
from weft.tasks import Lengths
from weft.training import Event, Progress, rates, train
from weft.training.compute import Compute
from weft.training.rates import Utilisation, allocated_bytes, model_flops_per_token, resident_bytes
from weft.training.run_training import build_model


def test_utilisation_is_the_models_operations_over_the_machines(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(tmp_path, ATTENTION)
    compute = Compute.choose(run.training.compute)
    measured: list[torch.dtype] = []
    rates._peak.cache_clear()
    monkeypatch.setattr(rates, "peak_flops", lambda dtype: (measured.append(dtype), 4e9)[1])
    lengths = Lengths(run.context)
    use = Utilisation(run, lengths, compute, torch.device("cpu"), run.training.batch_size)
    assert use.mfu(1000.0, rates.PATIENCE - 0.1) is None, "too early to be worth a measurement"
    tokens = run.training.batch_size * run.context * run.training.accumulation
    wanted = 1000.0 * tokens * model_flops_per_token(build_model(run), run.context) / 4e9
    assert use.mfu(1000.0, rates.PATIENCE) == pytest.approx(wanted, rel=1e-12)
    assert use.mfu(2000.0, 99.0) == pytest.approx(2 * wanted, rel=1e-12)
    again = Utilisation(run, lengths, compute, torch.device("cpu"), run.training.batch_size)
    assert again.mfu(1000.0, 99.0) == pytest.approx(wanted, rel=1e-12)
    assert measured == [torch.float32], "once in a process"
    rates._peak.cache_clear()


def test_a_run_tells_of_utilisation_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "PATIENCE", 0.0)
    told: list[Event] = []
    train(tiny_run(tmp_path, ATTENTION, steps=5), tmp_path / "run", on_event=told.append)
    progress = next(event for event in told if isinstance(event, Progress))
    assert progress.mfu is not None and 0 < progress.mfu < 1
    assert progress.resident_bytes is not None and 50e6 < progress.resident_bytes < 50e9, "torch alone takes 50 MB"
    assert progress.allocated_bytes is None
    assert "MFU" in progress.line() and "memory" in progress.line()


def test_resident_memory_follows_what_is_held() -> None:
    before = resident_bytes()
    held = torch.ones(50_000_000)
    after = resident_bytes()
    assert before is not None and after is not None
    assert after - before > 0.9 * held.nbytes
    assert allocated_bytes(torch.device("cpu")) is None

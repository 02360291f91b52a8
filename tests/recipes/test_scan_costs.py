"""The four ways of `recipes/scan_costs`: three compute one function, values and gradients; the page of a record."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

RECIPE = Path(__file__).parents[2] / "recipes" / "scan_costs"


@pytest.fixture(scope="module")
def made() -> Iterator[Any]:
    """The recipe's module, whose neighbour it imports by name."""
    sys.path.insert(0, str(RECIPE))
    yield import_module("run")
    sys.path.remove(str(RECIPE))
    for name in ("run", "ways"):
        sys.modules.pop(name)


def test_three_ways_compute_one_function(made: Any) -> None:
    outcomes = []
    for way in ("recurrence", "naive convolution", "FFT"):
        x = made.inputs(70)
        y = made.WAYS[way](x)
        outcomes.append([y.detach(), *torch.autograd.grad((y * torch.arange(70.0).sin()[:, None]).sum(), x)])
    for ours in outcomes[1:]:
        # In float32, sums of 70 numbers in other orders.
        torch.testing.assert_close(ours, outcomes[0], rtol=1e-4, atol=1e-4)


def test_attention_is_causal_and_as_wide(made: Any) -> None:
    x = made.inputs(9).detach()
    y, other = made.WAYS["attention"](x), x.clone()
    other[:, 5:] = 0
    assert y.shape == x.shape
    torch.testing.assert_close(made.WAYS["attention"](other)[:, :5], y[:, :5], rtol=1e-5, atol=1e-6)


def test_costs_are_measured_drawn_and_tabled(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another process takes seconds to begin, and the peak of so short a row in this one may be none.
    monkeypatch.setattr(made, "peak_apart", lambda way, steps: made.peak(way, steps) + 4096 * steps)
    found = made.record(made.measured((16, 32), 1))
    assert list(found["costs"]) == ["recurrence", "naive convolution", "FFT", "attention"]
    assert all(cost["both"] > 0 for costs in found["costs"].values() for cost in costs.values())
    made.written(json.loads(json.dumps(found)), tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".md", ".svg"}
    assert "| FFT: seconds, forward |" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_growth_is_that_of_the_last_doubling(made: Any) -> None:
    costs = {"8": {"peak": 1.0}, "16": {"peak": 3.0}, "32": {"peak": 12.0}}
    assert made.growth(costs, "peak") == 2.0

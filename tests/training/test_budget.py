"""Budgets as numbers of steps, and what a token costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from training.tiny_runs import ATTENTION, LSTM, tiny_run
from weft.core.errors import ConfigError
from weft.training import RunConfig, parse_run
from weft.training.budget import settle_steps, tokens_per_step
from weft.training.material import prepare
from weft.training.rates import model_flops_per_token, peak_flops
from weft.training.run_training import build_model


def budgeted(folder: Path, **training: Any) -> RunConfig:
    plain = tiny_run(folder, {**ATTENTION, "vocab_size": 300}).dump()
    return parse_run({**plain, "training": {**plain["training"], "steps": None, **training}})


def steps(run: RunConfig) -> int:
    return settle_steps(run, build_model(run), prepare(run).train, "cpu")


def test_a_token_costs_what_its_matrices_say(tmp_path: Path) -> None:
    model, d, t, v = build_model(budgeted(tmp_path)), 12, 8, 300
    matrices = d * 3 * d + d * d + 2 * d * 4 * d + v * d
    scores = 2 * d * (t + 1) / 2
    assert model_flops_per_token(model, t) == pytest.approx(6 * (matrices + scores), rel=1e-12)


def test_counting_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = build_model(budgeted(tmp_path))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.train()
    model_flops_per_token(model, 8)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_tokens_and_operations_become_the_steps_they_pay_for(tmp_path: Path) -> None:
    run = budgeted(tmp_path, tokens=1000.0, accumulation=3)
    assert tokens_per_step(run) == 4 * 8 * 3
    assert steps(run) == 10
    price = 4 * 8 * model_flops_per_token(build_model(run), 8)
    assert steps(budgeted(tmp_path, flops=7.9 * price)) == 7
    assert steps(budgeted(tmp_path, flops=8 * price)) == 8


def test_other_budgets(tmp_path: Path) -> None:
    assert steps(tiny_run(tmp_path, LSTM, steps=7)) == 7
    assert steps(budgeted(tmp_path)) == 1000
    assert steps(budgeted(tmp_path, seconds=0.05)) >= 1


@pytest.mark.parametrize(("budget", "message"), [
    ({"tokens": 31.0}, r"training\.tokens: a budget of 31, and one step takes 32\. Raise it, or lower training\.batch"),
    ({"flops": 5.0}, r"training\.flops: a budget of 5, and one step takes 1\.\d+e\+06\. Raise it"),
])
def test_a_budget_below_one_step_says_so(tmp_path: Path, budget: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        steps(budgeted(tmp_path, **budget))


def test_the_peak_is_measured() -> None:
    assert 1e8 < peak_flops(torch.float32) < 1e16

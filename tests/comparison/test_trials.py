"""The search for a learning rate within an attempt, and what runs can show."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from comparison.studies import LSTM
from weft.comparison.contestants import Contestant
from weft.comparison.jobs import Outcome
from weft.comparison.results import Status
from weft.comparison.student import detectable_difference, pooled_deviation
from weft.comparison.study_settings import TrialSettings, beyond
from weft.comparison.trials import Tuning, tune
from weft.training import parse_run

Curve = Callable[[float], float | Status]
"""Bits per byte of a trial by its learning rate, or how else it ended."""


def model(name: str = "m") -> Contestant:
    run = parse_run({"model": LSTM, "training": {"steps": 40, "optimizer": {"lr": 0.2}}})
    return Contestant(name, run, True, {}, 1.0)


def tuned(curves: dict[str, Curve], **settings: Any) -> tuple[dict[str, Tuning], dict[str, list[float]]]:
    """What was found, and the rates that each model tried, in order."""
    asked: dict[str, list[float]] = {name: [] for name in curves}

    def attempt(each: Contestant, lr: float) -> Outcome:
        asked[each.name].append(lr)
        found = curves[each.name](lr)
        return Outcome(found, "why") if isinstance(found, str) else Outcome("finished", tuning_bits_per_byte=found)

    return tune([model(name) for name in curves], TrialSettings(**settings), attempt), asked


def bowl(best: float, other: Status | None = None, *, above: float = math.inf) -> Curve:
    """A parabola in the logarithm of the rate; ``other`` above a rate."""
    return lambda lr: other if other is not None and lr > above else 2.0 + math.log(lr / best) ** 2


def test_the_best_rate_within_is_chosen() -> None:
    found, asked = tuned({"m": bowl(0.2)}, ratio=2.0)
    assert (found["m"].lr, found["m"].edge, found["m"].best) == (0.2, False, 2.0)
    assert asked == {"m": [0.1, 0.2, 0.4]}
    assert [trial.lr for trial in found["m"].trials] == [0.1, 0.2, 0.4]


def test_a_best_at_the_edge_is_looked_beyond_by_every_model() -> None:
    found, asked = tuned({"a": bowl(0.09), "b": bowl(0.01)}, learning_rates=[0.01, 0.03])
    assert asked["a"] == [0.01, 0.03, pytest.approx(0.01 / 3, rel=1e-5), 0.09, 0.27]
    assert sorted(asked["b"]) == sorted(asked["a"]), "equal effort"
    assert (found["a"].lr, found["a"].edge, found["b"].lr, found["b"].edge) == (0.09, False, 0.01, False)


def test_models_with_rates_of_their_own_widen_by_as_many() -> None:
    found, asked = tuned({"a": bowl(3.0), "b": bowl(0.2)}, count=3, ratio=3.0)
    assert asked["a"] == asked["b"] == [pytest.approx(0.2 / 3, rel=1e-5), 0.2, 0.6, 1.8, 5.4]
    assert not found["a"].edge


def test_widening_ends_and_the_edge_is_then_flagged() -> None:
    found, asked = tuned({"m": bowl(1e9)}, learning_rates=[0.01, 0.1])
    assert asked["m"] == [0.01, 0.1, 1.0, 10.0]
    assert (found["m"].lr, found["m"].edge) == (10.0, True)
    found, asked = tuned({"m": bowl(1e9)}, learning_rates=[0.01, 0.1], widest=0)
    assert (asked["m"], found["m"].edge) == ([0.01, 0.1], True)


def test_the_lower_of_equals_is_taken() -> None:
    found, _ = tuned({"m": lambda lr: 2.0 if lr < 1 else 3.0}, learning_rates=[0.1, 0.5, 1.0], widest=0)
    assert found["m"].lr == 0.1


def test_rates_that_all_diverge_are_looked_below() -> None:
    found, asked = tuned({"m": bowl(0.001, "diverged", above=0.002)}, learning_rates=[0.01, 0.1])
    assert asked["m"] == [0.01, 0.1, 0.001, 0.0001]
    assert (found["m"].lr, [trial.status for trial in found["m"].trials]) == (
        0.001, ["finished", "finished", "diverged", "diverged"])


def test_trials_that_all_fail_leave_the_models_own_rate() -> None:
    found, asked = tuned({"m": lambda lr: "failed"}, ratio=2.0)
    assert (found["m"].lr, found["m"].edge, found["m"].best, len(asked["m"])) == (0.2, False, None, 3)


def test_an_interrupted_trial_is_told() -> None:
    found, _ = tuned({"m": lambda lr: "interrupted" if lr == 0.1 else 2.0, "n": bowl(0.2)}, ratio=2.0)
    trial = found["m"].interrupted
    assert trial is not None and (trial.lr, trial.note) == (0.1, "why")
    assert found["n"].interrupted is None


def test_one_rate_is_no_search() -> None:
    found, asked = tuned({"m": bowl(0.2)}, count=1)
    assert (found["m"].trials, found["m"].lr, asked["m"]) == ((), 0.2, [])
    found, asked = tuned({"m": bowl(0.2)}, learning_rates=[0.5])
    assert (found["m"].trials, found["m"].lr, asked["m"]) == ((), 0.5, [])


def test_a_models_own_rate_is_always_among_those_tried() -> None:
    for count in range(1, 6):
        assert 0.01 in TrialSettings(count=count, ratio=2.0).rates(0.01)
    assert TrialSettings(count=2).rates(0.01) == [0.01, 0.03]
    assert TrialSettings(count=3, ratio=2.0).rates(0.01) == [0.005, 0.01, 0.02]
    assert TrialSettings(learning_rates=[0.3, 0.1, 0.3]).rates(0.01) == [0.1, 0.3]


def test_the_next_rate_continues_the_ratio() -> None:
    assert beyond([0.01, 0.03, 0.1], "above") == pytest.approx(0.1 * 0.1 / 0.03, rel=1e-5)
    assert beyond([0.01, 0.03, 0.1], "below") == pytest.approx(0.01 / 3, rel=1e-5)


def test_a_difference_of_the_detectable_size_is_found_by_welch_four_times_of_five() -> None:
    from scipy import stats

    size = detectable_difference(0.01, 5, 0.95, test="welch")
    assert size is not None
    draws = np.random.default_rng(6).normal(0, 0.01, (2, 3000, 5))
    found = stats.ttest_ind(draws[0] + size, draws[1], axis=1, equal_var=False).pvalue < 0.05
    assert float(np.mean(found)) == pytest.approx(0.8, abs=0.05)  # the sum of two quantiles is that near, see Welch


def test_a_pooled_deviation_weighs_samples_by_their_freedom() -> None:
    assert pooled_deviation([[1.0, 3.0], [5.0]]) == pytest.approx(math.sqrt(2))
    assert pooled_deviation([[0.0, 2.0], [0.0, 3.0, 6.0]]) == pytest.approx(math.sqrt((2 + 18) / 3))
    assert pooled_deviation([[1.0]]) is None

"""Over many repetitions of a made-up study whose models are all the same: how often some pair is told apart, and how
often intervals cover what is true. Every run has seeds of its own, and tunes by itself."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from jaxtyping import Float64

from comparison.entries import entry, result_of
from weft.comparison.statistics import holm, seed_test, t_test
from weft.comparison.student import SeedTest

TESTS: tuple[SeedTest, ...] = ("welch", "paired")
MODELS, RUNS, REPETITIONS = 4, 3, 1500
PENALTY = np.array([0.02, 0.0, 0.015, 0.08])
"""What each of four learning rates costs at the end of training, in bits per byte."""
TRIAL_NOISE, RUN_NOISE, ORDER_NOISE = 0.02, 0.01, 0.01
"""Standard deviations: of a trial from seed to seed, of a run, and of what all models' runs of one order share."""


def tuned(draws: np.random.Generator, *shape: int) -> Float64[np.ndarray, "..."]:
    """What runs lose by the rates that their trials choose."""
    found: np.ndarray = PENALTY[np.argmin(PENALTY + draws.normal(0, TRIAL_NOISE, (*shape, 4)), axis=-1)]
    return found


def repetitions(seed: int, *, tune: bool = True, once: bool = False,
                shared: float = ORDER_NOISE) -> Float64[np.ndarray, "R M N"]:
    """Bits per byte of every run of four equal models; tuned in each run, or ``once`` for all runs of a model."""
    draws = np.random.default_rng(seed)
    noise = draws.normal(0, RUN_NOISE, (REPETITIONS, MODELS, RUNS))
    order = draws.normal(0, shared, (REPETITIONS, 1, RUNS))
    loss = tuned(draws, REPETITIONS, MODELS, 1 if once else RUNS) if tune else 0.0
    found: np.ndarray = 2.0 + noise + order + loss
    return found


def truth() -> float:
    """The mean of a run that tunes by itself, from a million of them."""
    return 2.0 + float(tuned(np.random.default_rng(99), 1_000_000).mean())


def told_apart(study: Float64[np.ndarray, "M N"], test: SeedTest) -> bool:
    """Whether any pair of equal models is."""
    found = holm([seed_test(test, a, b, 0.95).p_value for a, b in itertools.combinations(study.tolist(), 2)])
    return any(p is not None and p <= 0.05 for p in found)


def bound(level: float, count: int) -> float:
    """Three standard errors above a share."""
    return level + 3 * math.sqrt(level * (1 - level) / count)


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("tune", [False, True], ids=["given rates", "tuned rates"])
def test_equal_models_are_told_apart_no_oftener_than_is_said(test: SeedTest, tune: bool) -> None:
    """Of six pairs any, which is what Holm's correction keeps at 5%."""
    share = float(np.mean([told_apart(each, test) for each in repetitions(1, tune=tune)]))
    assert share <= bound(0.05, REPETITIONS)


def covered(test: SeedTest, once: bool) -> float:
    """How often the interval of two equal models holds zero."""
    found = []
    for first, second, *_ in repetitions(3, once=once, shared=0.0).tolist():
        interval = seed_test(test, first, second, 0.95).interval
        assert interval.low is not None and interval.high is not None
        found.append(interval.low <= 0.0 <= interval.high)
    return float(np.mean(found))


@pytest.mark.parametrize("test", TESTS)
def test_intervals_of_differences_cover_as_often_as_they_say_where_every_run_is_tuned(test: SeedTest) -> None:
    """And too seldom where a rate is chosen once for all runs of a model: that choice is then in no interval."""
    # Welch's is the surer with few runs.
    assert covered(test, once=False) >= 1 - bound(0.05, REPETITIONS)
    assert covered(test, once=True) < 0.9


def test_intervals_of_a_model_cover_the_mean_of_tuned_runs_where_runs_tune_by_themselves() -> None:
    expected, shares = truth(), {}
    for once in (False, True):
        intervals = [t_test(study[0], 0.95).interval for study in repetitions(4, once=once).tolist()]
        shares[once] = float(np.mean([each.low is not None and each.high is not None
                                      and each.low <= expected <= each.high for each in intervals]))
    # Student's t is exact for normal runs; the few rates make these a mixture, which costs up to two percent.
    assert shares[False] == pytest.approx(0.95, abs=0.02)
    assert shares[True] < 0.9


def test_the_test_of_welch_with_unequal_spreads_keeps_what_it_says() -> None:
    """One model whose runs differ ten times as much as the other's."""
    draws = np.random.default_rng(5)
    p_values = [seed_test("welch", draws.normal(0, 0.1, 5).tolist(), draws.normal(0, 0.01, 5).tolist(), 0.95).p_value
                for _ in range(REPETITIONS)]
    assert float(np.mean([p is not None and p <= 0.05 for p in p_values])) <= bound(0.05, REPETITIONS)


@pytest.mark.parametrize("test", TESTS)
def test_the_same_model_under_other_names_and_seeds_is_told_apart_no_oftener_than_is_said(test: SeedTest) -> None:
    """Whole studies: runs and documents, tuning, the sum of both doubts, and the correction over pairs."""
    draws, found, count = np.random.default_rng(6), [], 250
    for _ in range(count):
        text = 140 + draws.normal(0, 10.0, 30)
        order = draws.normal(0, 100 * ORDER_NOISE, RUNS)
        loss = 100 * tuned(draws, 3, RUNS)
        models = [entry(name, [text + order[index] + loss[place, index] + draws.normal(0, 100 * RUN_NOISE)
                               + draws.normal(0, 2.0, 30) for index in range(RUNS)])
                  for place, name in enumerate(("first", "second", "third"))]
        found.append(any(not pair.tied for pair in result_of(models, test, resamples=100).differences))
    assert float(np.mean(found)) <= bound(0.05, count)

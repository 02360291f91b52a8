"""Intervals cover what they say, tests agree with SciPy, and degenerate cases say what can be said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from weft.comparison.results import Interval
from weft.comparison.statistics import (
    Clusters,
    bootstrap_test,
    crosses,
    detectable_difference,
    holm,
    paired_deviation,
    t_test,
    tied_sets,
)


def test_the_paired_test_is_that_of_scipy() -> None:
    draws = np.random.default_rng(0)
    a, b = draws.normal(1.0, 0.1, 5), draws.normal(1.1, 0.1, 5)
    found, expected = t_test((a - b).tolist(), 0.9), stats.ttest_rel(a, b)
    low, high = expected.confidence_interval(0.9)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-10)
    assert found.interval.low == pytest.approx(low)
    assert found.interval.high == pytest.approx(high)
    assert found.variance == pytest.approx(np.var(a - b, ddof=1))


def test_a_single_value_has_neither_bounds_nor_a_p_value() -> None:
    assert t_test([0.25], 0.95) == (Interval(0.25, None, None), None, None)


@pytest.mark.parametrize(("value", "p_value"), [(0.0, 1.0), (0.1, 0.0)])
def test_values_without_variance(value: float, p_value: float) -> None:
    assert t_test([value] * 3, 0.95) == (Interval(value, value, value), 0.0, p_value)


def test_t_intervals_cover_as_often_as_they_say() -> None:
    draws = np.random.default_rng(1).normal(0.3, 2.0, (4000, 3))
    intervals = [t_test(row, 0.9).interval for row in draws.tolist()]
    covered = sum(each.low is not None and each.high is not None and each.low <= 0.3 <= each.high for each in intervals)
    assert covered / 4000 == pytest.approx(0.9, abs=4 * math.sqrt(0.9 * 0.1 / 4000))  # four standard errors


def _clusters(nats: np.ndarray, size: int = 100) -> Clusters:
    return Clusters(nats, np.full(len(nats), size))


def test_the_bootstrap_has_the_variance_of_the_mean_for_equal_clusters() -> None:
    nats = np.random.default_rng(2).normal(150.0, 20.0, 400)
    found = bootstrap_test(_clusters(nats), _clusters(np.zeros(400)), 0.95, seed=0, resamples=4000)
    expected = nats.var() / 400 / (100 * math.log(2)) ** 2
    assert found.interval.mean == pytest.approx(nats.mean() / 100 / math.log(2))
    # A variance from 4,000 draws has a relative standard error of sqrt(2/4000) = 2.2%.
    assert found.variance == pytest.approx(expected, rel=0.09)


def test_the_bootstrap_of_a_ratio_weighs_clusters_by_their_bytes() -> None:
    draws = np.random.default_rng(3)
    sizes = draws.integers(50, 500, 300)
    nats = sizes * draws.normal(0.7, 0.1, 300)
    found = bootstrap_test(Clusters(nats, sizes), Clusters(np.zeros(300), sizes), 0.95, seed=0, resamples=4000)
    ratio = nats.sum() / sizes.sum()
    linearised = ((nats - ratio * sizes) ** 2).sum() / sizes.sum() ** 2 / math.log(2) ** 2
    assert found.interval.mean == pytest.approx(ratio / math.log(2))
    assert found.variance == pytest.approx(linearised, rel=0.12)  # the linearisation itself is off by about 1/300


def test_bootstrap_intervals_cover_as_often_as_they_say() -> None:
    draws, covered = np.random.default_rng(4), 0
    for trial in range(300):
        nats = draws.normal(5.0, 30.0, 60)
        low_high = bootstrap_test(_clusters(nats), _clusters(np.zeros(60)), 0.9, seed=trial, resamples=400).interval
        assert low_high.low is not None and low_high.high is not None
        covered += low_high.low <= 5.0 / 100 / math.log(2) <= low_high.high
    assert covered / 300 == pytest.approx(0.9, abs=0.07)  # four standard errors


def test_both_models_are_resampled_alike() -> None:
    """What makes a document hard for both leaves no doubt about their difference."""
    hard = np.random.default_rng(6).normal(500.0, 100.0, 50)
    found = bootstrap_test(_clusters(hard + 30.0), _clusters(hard), 0.95, seed=0, resamples=200)
    wanted = pytest.approx(30.0 / 100 / math.log(2), rel=1e-9)
    assert (found.interval.low, found.interval.high) == (wanted, wanted)


def test_equal_clusters_leave_no_doubt_that_there_is_no_difference() -> None:
    same = _clusters(np.arange(30.0))
    assert bootstrap_test(same, same, 0.95, seed=0) == (Interval(0.0, 0.0, 0.0), 0.0, 1.0)


def test_a_clear_difference_has_the_smallest_p_value_that_resamples_allow() -> None:
    draws = np.random.default_rng(5)
    found = bootstrap_test(_clusters(draws.normal(50, 1, 40)), _clusters(draws.normal(100, 1, 40)), 0.95, seed=0,
                           resamples=999)
    assert found.p_value == pytest.approx(2 / 1000)
    assert found.interval.high is not None and found.interval.high < 0


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03: times 3, 2, 1 is 0.03, 0.04, 0.03, and the last may not fall below the one before.
    assert holm([0.03, 0.01, None, 0.02]) == [pytest.approx(0.04), pytest.approx(0.03), None, pytest.approx(0.04)]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_tied_sets_are_headed_by_their_best() -> None:
    means = {"c": 1.2, "a": 1.0, "b": 1.1, "d": 2.0}
    tied = {frozenset(pair): False for pair in ("ac", "ad", "bd", "cd")}
    tied |= {frozenset("ab"): True, frozenset("bc"): True}
    assert tied_sets(means, tied) == (("a", "b"), ("b", "c"), ("d",))


def test_a_tied_set_within_an_earlier_one_is_left_out() -> None:
    means = {"a": 1.0, "b": 1.1, "c": 1.2}
    everything = {frozenset(pair): True for pair in ("ab", "ac", "bc")}
    assert tied_sets(means, everything) == (("a", "b", "c"),)


def test_a_difference_of_the_detectable_size_is_found_four_times_of_five() -> None:
    size = detectable_difference(0.01, 4, 0.95)
    assert size is not None
    draws = np.random.default_rng(6).normal(size, 0.01, (3000, 4))
    found = float(np.mean(stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05))
    assert found == pytest.approx(0.8, abs=0.05)  # the sum of two quantiles is an approximation of that order


def test_more_pairs_and_fewer_runs_hide_more() -> None:
    sizes = [detectable_difference(0.01, runs, 0.95, pairs) for runs, pairs in ((5, 1), (5, 10), (3, 10))]
    assert sizes == sorted(sizes, key=lambda size: size or 0.0)
    assert detectable_difference(0.01, 1, 0.95) is None


def test_the_deviation_of_paired_runs_leaves_out_what_seeds_share() -> None:
    assert paired_deviation({"a": [1.0, 1.5], "b": [2.0, 2.5]}) == 0.0
    assert paired_deviation({"a": [1.0, 1.5], "b": [2.0, 2.1]}) == pytest.approx(0.4 / math.sqrt(2))
    assert paired_deviation({"a": [1.0, 1.5], "b": [2.0]}) is None


@pytest.mark.parametrize(("gaps", "expected"), [
    ([(-0.3, -0.1), (0.1, 0.2)], True),
    ([(-0.3, 0.1), (0.1, 0.2)], False),
    ([(-0.3, -0.1), (-0.1, 0.2)], False),
    ([(0.3, 0.5), (0.1, 0.2)], False),
    ([], False)])
def test_the_order_crosses_only_beyond_the_intervals(gaps: list[tuple[float, float]], expected: bool) -> None:
    assert crosses([Interval((low + high) / 2, low, high) for low, high in gaps]) is expected


def test_single_runs_never_cross() -> None:
    assert not crosses([Interval(-1.0, None, None), Interval(1.0, None, None)])

"""Intervals and tests agree with SciPy, and degenerate cases say what can be said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from weft.comparison.statistics import Interval, correlation, holm, seed_test, t_test, welch_test
from weft.comparison.student import SeedTest

TESTS: tuple[SeedTest, ...] = ("welch", "paired")


def test_the_paired_test_is_that_of_scipy() -> None:
    draws = np.random.default_rng(0)
    a, b = draws.normal(1.0, 0.1, 5), draws.normal(1.1, 0.1, 5)
    found, expected = seed_test("paired", a.tolist(), b.tolist(), 0.9), stats.ttest_rel(a, b)
    low, high = expected.confidence_interval(0.9)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-10)
    assert found.interval.low == pytest.approx(low)
    assert found.interval.high == pytest.approx(high)
    assert found.error == pytest.approx(np.std(a - b, ddof=1) / math.sqrt(5))


@pytest.mark.parametrize(("n", "m", "spread"), [(3, 3, 0.1), (5, 5, 0.01), (2, 7, 3.0), (10, 3, 1e-9)])
def test_the_test_of_welch_is_that_of_scipy(n: int, m: int, spread: float) -> None:
    draws = np.random.default_rng(n)
    a, b = draws.normal(1.0, 0.1, n), draws.normal(1.05, spread, m)
    found, expected = seed_test("welch", a.tolist(), b.tolist(), 0.95), stats.ttest_ind(a, b, equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert found.interval.mean == pytest.approx(a.mean() - b.mean())
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.interval.low == pytest.approx(low)
    assert found.interval.high == pytest.approx(high)
    assert found.error == pytest.approx(math.sqrt(a.var(ddof=1) / n + b.var(ddof=1) / m))


def test_single_values_have_neither_bounds_nor_a_p_value() -> None:
    assert t_test([0.25], 0.95) == (Interval(0.25, None, None), None, None, None)
    for found in (welch_test([0.5], [0.25], 0.95), welch_test([0.5, 0.5], [0.25], 0.95),
                  seed_test("paired", [0.5], [0.25], 0.95)):
        assert found == (Interval(0.25, None, None), None, None, None)


@pytest.mark.parametrize(("value", "p_value"), [(0.0, 1.0), (0.1, 0.0)])
def test_values_without_variance(value: float, p_value: float) -> None:
    assert t_test([value] * 3, 0.95) == (Interval(value, value, value), 0.0, p_value, 2)
    assert welch_test([value] * 3, [0.0] * 2, 0.95) == (Interval(value, value, value), 0.0, p_value, 1)


def test_one_side_without_variance_leaves_the_degrees_of_freedom_of_the_other() -> None:
    """As an n-gram that has counted the whole text each time."""
    varied, level = [1.0, 1.2, 1.1], [1.5] * 3
    found, alone = welch_test(varied, level, 0.95), t_test([value - 1.5 for value in varied], 0.95)
    assert found.interval.low == pytest.approx(alone.interval.low)
    assert found.p_value == pytest.approx(alone.p_value)


def test_the_correlation_of_runs_is_that_of_scipy() -> None:
    draws = np.random.default_rng(7)
    a = draws.normal(2.0, 0.1, 6)
    b = a + draws.normal(0.0, 0.1, 6)
    assert correlation(a.tolist(), b.tolist()) == pytest.approx(stats.pearsonr(a, b).statistic)
    assert correlation([1.0, 2.0], [3.0, 4.0]) is None, "two points lie on a line whatever they are"
    assert correlation([1.0, 2.0, 3.0], [3.0, 3.0, 3.0]) is None


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03: times 3, 2, 1 is 0.03, 0.04, 0.03, and the last may not fall below the one before.
    assert holm([0.03, 0.01, None, 0.02]) == [pytest.approx(0.04), pytest.approx(0.03), None, pytest.approx(0.04)]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []

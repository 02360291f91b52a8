"""Intervals and tests agree with SciPy, and degenerate cases say what can be said."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from weft.comparison.statistics import (
    Estimate,
    Interval,
    combined_test,
    correlation,
    equivalence_p,
    holm,
    seed_test,
    t_test,
    welch_test,
)
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


def source(mean: float, error: float | None, freedom: float) -> Estimate:
    """An estimate with this error."""
    return Estimate(Interval(mean, None, None), error, None, freedom)


@pytest.mark.parametrize("mean", [-0.03, -0.004, 0.0, 0.004, 0.02, 0.03])
def test_equivalence_is_two_one_sided_tests(mean: float) -> None:
    """Over runs alone they are those of SciPy's t; over both, they agree with the interval at twice their level."""
    alone = equivalence_p(source(mean, 0.005, 7.0), source(mean, 1e-12, 40.0), 0.02)
    sides = stats.t.sf((0.02 - mean) / 0.005, 7), stats.t.sf((0.02 + mean) / 0.005, 7)
    assert alone == pytest.approx(max(sides), rel=1e-6)
    both = source(mean, 0.005, 7.0), source(mean, 0.004, 40.0)
    p_value = equivalence_p(*both, 0.02)
    assert p_value is not None
    within = combined_test(*both, 1 - 2 * min(p_value, 0.49)).interval
    assert within.low is not None and within.high is not None
    assert (p_value < 0.49) == (abs(mean) < 0.02)
    assert p_value > 0.49 or max(abs(within.low), abs(within.high)) == pytest.approx(0.02), "its bound is the margin"


def test_equivalence_needs_two_runs_unless_models_are_the_same() -> None:
    assert equivalence_p(source(0.001, None, 0.0), source(0.001, 0.001, 40.0), 0.01) is None
    assert equivalence_p(source(0.0, None, 0.0), source(0.0, 0.0, 40.0), 0.01) == 0
    assert equivalence_p(source(0.02, 0.0, 4.0), source(0.02, 0.0, 40.0), 0.01) == 1


@pytest.mark.parametrize("ratio", [0.25, 1.0, 4.0])
def test_models_a_margin_apart_are_called_as_good_no_oftener_than_is_said(ratio: float) -> None:
    """Three standard errors of 1,000 studies of five runs and 40 documents above 5 %."""
    draws, wrong, margin = np.random.default_rng(5), 0, 3.0
    for _ in range(1_000):
        text = draws.normal(margin, math.sqrt(40), 40)
        runs = [draws.normal(0, ratio * math.sqrt(5 / 2), 5) for _ in range(2)]
        over = welch_test((runs[0] + text.mean()).tolist(), runs[1].tolist(), 0.95)
        p_value = equivalence_p(over, source(text.mean(), text.std(ddof=1) / math.sqrt(40), 39.0), margin)
        wrong += p_value is not None and p_value <= 0.05
    assert wrong <= 1_000 * (0.05 + 3 * math.sqrt(0.05 * 0.95 / 1_000))

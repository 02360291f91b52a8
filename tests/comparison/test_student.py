"""Student's t against SciPy, and the differences that tests by it detect."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from weft.comparison.student import (
    SeedTest,
    above,
    critical_t,
    detectable_difference,
    detectable_shift,
    incomplete_beta,
    paired_deviation,
    t_quantile,
    t_two_sided,
)

TESTS: tuple[SeedTest, ...] = ("welch", "paired")
FREEDOMS = (1, 1.3, 2, 3, 4, 9.7, 29, 1000)


@pytest.mark.parametrize("freedom", FREEDOMS)
@pytest.mark.parametrize("probability", [0.001, 0.025, 0.2, 0.5, 0.8, 0.975, 0.9999])
def test_quantiles_are_those_of_scipy(freedom: float, probability: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("freedom", FREEDOMS)
@pytest.mark.parametrize("t", [0.0, 0.3, -2.0, 12.7, 1e6])
def test_two_sided_tails_are_those_of_scipy(freedom: float, t: float) -> None:
    assert t_two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-9, abs=1e-300)


def test_close_to_zero_the_distance_from_one_has_its_digits() -> None:
    # One degree of freedom is Cauchy's distribution: P(|T| >= t) = 1 - 2 arctan(t) / pi.
    assert 1 - t_two_sided(1e-8, 1) == pytest.approx(2e-8 / math.pi, rel=1e-6)


def test_an_infinite_t_leaves_no_doubt() -> None:
    assert t_two_sided(math.inf, 3) == 0.0


@pytest.mark.parametrize(("x", "a", "b"), [(0.0, 2, 3), (1.0, 2, 3), (0.01, 0.5, 0.5), (0.7, 12, 4), (0.999, 500, 0.5)])
def test_the_incomplete_beta_function_is_that_of_scipy(x: float, a: float, b: float) -> None:
    assert incomplete_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("freedom", [1, 2, 4, 18, 400])
@pytest.mark.parametrize("t", [0.5, 4.3, 17.3, 700.0])
@pytest.mark.parametrize("shift", [0.0, 3.0, 20.0, 80.0])
def test_the_noncentral_tail_is_that_of_scipy(freedom: float, t: float, shift: float) -> None:
    # SciPy's own figure is good to about 1e-9 of one.
    breaks = [np.array([[max(0.0, (shift + each) / t)]]) for each in (-9, 9)]
    (found,) = above(lambda s: t * s, breaks, freedom, shift)
    assert found == pytest.approx(stats.nct.sf(t, freedom, shift), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("freedom", "t"), [(1, 1000.0), (2, 17.3), (8, 5.0), (58, 2.0)])
def test_a_shift_has_the_power_that_was_asked_for(freedom: float, t: float) -> None:
    shift = detectable_shift(int(freedom) + 1, float(stats.t.cdf(t, freedom)), "paired")
    assert stats.nct.sf(t, freedom, shift) == pytest.approx(0.8, abs=1e-8)


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.5])
def test_a_quantile_needs_a_probability(probability: float) -> None:
    with pytest.raises(ValueError, match="a probability lies between 0 and 1"):
        t_quantile(probability, 3)


@pytest.mark.parametrize("runs", [2, 3, 5, 10])
@pytest.mark.parametrize("pairs", [1, 15])
@pytest.mark.parametrize("test", TESTS)
def test_a_difference_of_the_detectable_size_is_found_four_times_of_five(runs: int, pairs: int, test: SeedTest) -> None:
    """Also with three runs of Welch's, whose degrees of freedom are seldom the four of equal spreads."""
    n = 20_000
    size = detectable_difference(0.01, runs, 0.95, pairs, test)
    assert size is not None
    draws = np.random.default_rng(6)
    better, worse = draws.normal(size, 0.01, (n, runs)), draws.normal(0, 0.01, (n, runs))
    tested = (stats.ttest_1samp(better, 0.0, axis=1) if test == "paired" else
              stats.ttest_ind(better, worse, axis=1, equal_var=False))
    share = float(np.mean((tested.pvalue < 0.05 / pairs) & (tested.statistic > 0)))
    # Four standard errors of a share of 0.8 among 20,000.
    assert share == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / n))


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize(("runs", "documents", "pairs"), [(3, 50, 1), (3, 20, 15), (5, 50, 15), (20, 50, 1)])
@pytest.mark.parametrize("test", TESTS)
def test_a_difference_is_found_by_other_runs_on_another_text_four_times_of_five(
        ratio: float, runs: int, documents: int, pairs: int, test: SeedTest) -> None:
    """By the test that decides, of the sum of both variances, for ratios of the errors of runs and of documents."""
    n, draws = 10_000, np.random.default_rng(5)
    deviation = ratio * math.sqrt(runs / (1 if test == "paired" else 2))
    size = detectable_difference(deviation, runs, 0.95, pairs, test, (1.0, documents - 1.0))
    assert size is not None
    own = draws.normal(0, deviation, (2, n, runs))
    seeds, freedom = own.var(axis=2, ddof=1) / runs, np.full(n, runs - 1.0)
    if test == "welch":
        freedom = seeds.sum(0) ** 2 / (seeds**2).sum(0) * (runs - 1)
    else:
        own[1], seeds[1] = 0, 0
    text = draws.normal(0, math.sqrt(documents), (n, documents))
    over, error = text.var(axis=1, ddof=1) / documents, np.sqrt(seeds.sum(0) + text.var(axis=1, ddof=1) / documents)
    difference = size + own[0].mean(1) - own[1].mean(1) + text.mean(1)
    far = np.abs(difference) / error
    p = 2 * (seeds.sum(0) * stats.t.sf(far, freedom) + over * stats.t.sf(far, documents - 1)) / error**2
    # Four standard errors of a share of 0.8 among 10,000.
    assert float(np.mean((p < 0.05 / pairs) & (difference > 0))) == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / n))


def test_documents_of_as_many_degrees_of_freedom_as_runs_change_no_critical_value() -> None:
    """With one t for both sources the difference is that of a sum of two variances, which is surer than either."""
    alone, both = (detectable_shift(5, 0.975, "paired", share, 4.0) for share in (1.0, 0.5))
    eight = detectable_shift(9, float(stats.t.cdf(stats.t.ppf(0.975, 4), 8)), "paired")
    assert both == pytest.approx(eight, rel=1e-4) and both < alone, "two chi-square of four make one of eight"


def test_what_three_runs_and_fifteen_pairs_must_exceed() -> None:
    assert critical_t(3, 0.95, 15, "paired") == (pytest.approx(17.28, abs=0.005),) * 2
    assert critical_t(3, 0.95, 15, "welch") == (pytest.approx(stats.t.isf(0.05 / 30, 4)),
                                                pytest.approx(stats.t.isf(0.05 / 30, 2)))
    assert critical_t(5, 0.95, 1, "paired")[0] == pytest.approx(stats.t.ppf(0.975, 4))


@pytest.mark.parametrize("test", TESTS)
def test_more_pairs_and_fewer_runs_hide_more(test: SeedTest) -> None:
    sizes = [detectable_difference(0.01, runs, 0.95, pairs, test) for runs, pairs in ((5, 1), (5, 10), (3, 10))]
    assert sizes == sorted(sizes, key=lambda size: size or 0.0)
    assert detectable_difference(0.01, 1, 0.95, test=test) is None


def test_the_deviation_of_paired_runs_leaves_out_what_seeds_share() -> None:
    assert paired_deviation({"a": [1.0, 1.5], "b": [2.0, 2.5]}) == 0.0
    assert paired_deviation({"a": [1.0, 1.5], "b": [2.0, 2.1]}) == pytest.approx(0.4 / math.sqrt(2))
    assert paired_deviation({"a": [1.0, 1.5], "b": [2.0]}) is None

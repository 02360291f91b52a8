"""Resampling by document: its mean and variance are right, and its intervals cover what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from weft.comparison.statistics import Estimate, bootstrap_test, effective_clusters, resampled


def found(nats: np.ndarray, sizes: np.ndarray, confidence: float = 0.95, seed: int = 0,
          resamples: int = 4000) -> Estimate:
    drawn = resampled([nats.tolist()], sizes.tolist(), seed=seed, resamples=resamples)[0]
    return bootstrap_test(float(nats.sum() / sizes.sum()) / math.log(2), drawn, effective_clusters(sizes.tolist()),
                          confidence)


def test_the_bootstrap_has_the_error_of_the_mean_for_equal_clusters() -> None:
    nats = np.random.default_rng(2).normal(150.0, 20.0, 400)
    estimate = found(nats, np.full(400, 100))
    expected = nats.std(ddof=1) / math.sqrt(400) / (100 * math.log(2))
    assert estimate.interval.mean == pytest.approx(nats.mean() / 100 / math.log(2))
    # A deviation from 4,000 draws has a relative standard error of 1/sqrt(8000) = 1.1%: four of them.
    assert estimate.error == pytest.approx(expected, rel=0.045)


def test_the_bootstrap_of_a_ratio_weighs_clusters_by_their_bytes() -> None:
    draws = np.random.default_rng(3)
    sizes = draws.integers(50, 500, 300)
    nats = sizes * draws.normal(0.7, 0.1, 300)
    ratio = nats.sum() / sizes.sum()
    linearised = math.sqrt(((nats - ratio * sizes) ** 2).sum()) / sizes.sum() / math.log(2)
    # 4.5% as above, and the linearisation itself is off by about 1/300.
    assert found(nats, sizes).error == pytest.approx(linearised, rel=0.06)


@pytest.mark.parametrize(("clusters", "skewed"), [(20, False), (50, False), (20, True)])
def test_bootstrap_intervals_cover_as_often_as_they_say(clusters: int, skewed: bool) -> None:
    """Few clusters, too: plain percentiles of twenty cover 87% where they say 90%."""
    draws, covered, repetitions = np.random.default_rng(4), 0, 1500
    sizes = np.full(clusters, 100)
    for seed in range(repetitions):
        nats = 5.0 + 30.0 * (draws.exponential(1.0, clusters) - 1 if skewed else draws.normal(0.0, 1.0, clusters))
        interval = found(nats, sizes, 0.9, seed, 400).interval
        assert interval.low is not None and interval.high is not None
        covered += interval.low <= 5.0 / 100 / math.log(2) <= interval.high
    # Three standard errors, 0.023; quantiles of 400 draws cost half a percent, a skewness of 2 with 20 clusters three
    # (Hesterberg 2015, figure 10, gives as much for the t interval).
    assert covered / repetitions == pytest.approx(0.9, abs=0.028 + (0.03 if skewed else 0.0))


def test_documents_of_unequal_size_count_as_fewer() -> None:
    """Forty documents that say as much as nine: with forty for their number, intervals cover too seldom."""
    draws, covered, repetitions = np.random.default_rng(6), {True: 0, False: 0}, 1500
    sizes = np.array([8000] * 5 + [400] * 35)
    assert effective_clusters(sizes.tolist()) == pytest.approx(54_000**2 / 325_600_000)
    for seed in range(repetitions):
        nats = sizes * draws.normal(0.5, 0.1, len(sizes))
        drawn = resampled([nats.tolist()], sizes.tolist(), seed=seed, resamples=400)[0]
        for effective in (True, False):
            number = effective_clusters(sizes.tolist()) if effective else len(sizes)
            interval = bootstrap_test(float(nats.sum() / sizes.sum()) / math.log(2), drawn, number, 0.9).interval
            assert interval.low is not None and interval.high is not None
            covered[effective] += interval.low <= 0.5 / math.log(2) <= interval.high
    # As above; percentiles of a sum that five documents make up are a little short.
    assert covered[True] / repetitions >= 0.9 - 0.028
    assert covered[False] / repetitions < covered[True] / repetitions - 0.02


def test_p_values_of_no_difference_are_even() -> None:
    draws = np.random.default_rng(5)
    sizes = np.full(30, 100)
    p_values = [found(draws.normal(0.0, 1.0, 30), sizes, seed=seed, resamples=400).p_value for seed in range(1000)]
    for level in (0.05, 0.3):
        # Four standard errors; 400 draws tell a p of 0.05 to a tenth of it.
        share = float(np.mean([p is not None and p <= level for p in p_values]))
        assert share == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 1000))


def test_a_clear_difference_is_as_clear_as_its_standard_errors_say() -> None:
    nats = np.random.default_rng(5).normal(-50, 10, 40)
    estimate = found(nats, np.full(40, 100), resamples=999)
    expected = stats.ttest_1samp(nats, 0.0).pvalue
    assert estimate.p_value is not None and estimate.p_value < 1e-15
    # The error is known to 1/sqrt(2 * 999) = 2.2%, and so is t = 30; four times that.
    t = stats.t.isf(estimate.p_value / 2, 39)
    assert t == pytest.approx(stats.t.isf(expected / 2, 39), rel=0.09)
    assert estimate.interval.high is not None and estimate.interval.high < 0


def test_a_single_resample_on_the_other_side_decides() -> None:
    drawn = np.array([-0.1, *np.linspace(0.5, 1.5, 998)])
    # Two of a thousand, with the tails of 39 degrees of freedom.
    expected = 2 * stats.t.sf(stats.norm.isf(2 / 1000) * math.sqrt(39 / 40), 39)
    assert bootstrap_test(1.0, drawn, 40, 0.95).p_value == pytest.approx(expected)


def test_all_runs_meet_the_same_texts_whatever_their_number() -> None:
    nats = np.random.default_rng(8).normal(100.0, 5.0, (3, 25))
    sizes = list(range(80, 105))
    together = resampled(nats.tolist(), sizes, seed=3, resamples=50)
    for row, alone in zip(together, nats, strict=True):
        np.testing.assert_allclose(row, resampled([alone.tolist()], sizes, seed=3, resamples=50)[0], rtol=1e-12)


def test_the_draws_are_those_that_numpy_promises_to_keep() -> None:
    """Two clusters, one of which says nothing: the first raw numbers of PCG64(0), odd or even, are in the figures."""
    raw = np.random.PCG64(0).random_raw(6).reshape(3, 2)
    drawn = resampled([[0.0, math.log(2)]], [1, 1], seed=0, resamples=3)[0]
    np.testing.assert_allclose(drawn, (raw % 2).sum(axis=1) / 2, rtol=1e-15)


def test_a_resampled_text_has_all_its_nats_over_all_its_bytes() -> None:
    """By hand, of two unequal clusters; a mean of their own figures would be another."""
    chosen = (np.random.PCG64(0).random_raw(12).reshape(6, 2) % 2).astype(np.int64)
    assert (chosen.sum(axis=1) == 1).any(), "both are in one"
    nats, sizes = np.array([50.0, 300.0]), np.array([100, 300])
    drawn = resampled([nats.tolist()], sizes.tolist(), seed=0, resamples=6)[0]
    np.testing.assert_allclose(drawn, nats[chosen].sum(axis=1) / sizes[chosen].sum(axis=1) / math.log(2), rtol=1e-15)

"""Intervals and tests from run to run, their correction over pairs, and what so many runs can show."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from weft.comparison.differences import Interval, SeedTest
from weft.comparison.student import quadrature, t_quantile, t_shift, t_two_sided

POWER = 0.8
BOOTSTRAP = 10_000
"""Resamples."""


class Estimate(NamedTuple):
    """An estimate with its interval, the standard error it rests on, and the two-sided p-value of zero. Error and p
    are None where a single value gives none."""

    interval: Interval
    error: float | None
    p_value: float | None


def t_test(values: Sequence[float], confidence: float) -> Estimate:
    """The mean of independent values, by Student's t.

        mean +- t_(1-alpha/2, n-1) s / sqrt(n)

    Values that are all zero give p = 1; equal ones that are not, p = 0; a single one neither bounds nor p.
    """
    mean, variance = _moments(values)
    if variance is None:
        return Estimate(Interval(mean, None, None), None, None)
    return _estimate(mean, math.sqrt(variance / len(values)), len(values) - 1, confidence)


def welch_test(first: Sequence[float], second: Sequence[float], confidence: float) -> Estimate:
    """The difference of two means of independent values, whose variances may differ (Welch 1947).

        mean_1 - mean_2 +- t_(1-alpha/2, v) e,    e^2 = s_1^2 / n_1 + s_2^2 / n_2,
        v = e^4 / (s_1^4 / (n_1^2 (n_1 - 1)) + s_2^4 / (n_2^2 (n_2 - 1)))

    A single value on either side gives neither bounds nor p.
    """
    (mean, variance), (other, variance_of_other) = _moments(first), _moments(second)
    if variance is None or variance_of_other is None:
        return Estimate(Interval(mean - other, None, None), None, None)
    squares = variance / len(first), variance_of_other / len(second)
    whole = squares[0] + squares[1]
    if whole == 0:
        return _estimate(mean - other, 0.0, 1.0, confidence)
    # Shares, not squares of small numbers: these would fall below the smallest float.
    shares = sum((each / whole) ** 2 / (len(values) - 1) for each, values in zip(squares, (first, second), strict=True))
    return _estimate(mean - other, math.sqrt(whole), 1 / shares, confidence)


def seed_test(test: SeedTest, first: Sequence[float], second: Sequence[float], confidence: float) -> Estimate:
    """The difference of two models' runs.

    Args:
        test: ``paired`` takes the differences of runs with the same seeds, which stand in the same order;
            ``welch`` takes all runs as independent.
        first: bits per byte of one model's runs.
        second: of the other's.
        confidence: of the interval.
    """
    if test == "paired":
        return t_test([a - b for a, b in zip(first, second, strict=True)], confidence)
    return welch_test(first, second, confidence)


def _moments(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and variance; equal values have exactly none, and a single one an unknown one."""
    if len(values) < 2:
        return values[0], None
    if len(set(values)) == 1:
        return values[0], 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _estimate(mean: float, error: float, freedom: float, confidence: float) -> Estimate:
    if error == 0:
        return Estimate(Interval(mean, mean, mean), 0.0, float(mean == 0))
    margin = t_quantile((1 + confidence) / 2, freedom) * error
    return Estimate(Interval(mean, mean - margin, mean + margin), error, t_two_sided(mean / error, freedom))


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's, of runs in the same order of seeds; None below three of them, and where one does not vary."""
    if len(first) < 3:
        return None
    (mean, variance), (other, variance_of_other) = _moments(first), _moments(second)
    if not variance or not variance_of_other:
        return None
    shared = math.fsum((a - mean) * (b - other) for a, b in zip(first, second, strict=True)) / (len(first) - 1)
    return max(-1.0, min(1.0, shared / math.sqrt(variance) / math.sqrt(variance_of_other)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjusted p-values (Holm 1979); tests without a p-value do not count.

        p_(k)* = max over j <= k of min(1, (m - j + 1) p_(j)),    p_(1) <= ... <= p_(m)
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = highest
    return adjusted


def critical_t(runs: int, confidence: float, pairs: int, test: SeedTest) -> tuple[float, float]:
    """What |t| must exceed at the first step of Holm's correction: at the least and at the most.

        t_(1-alpha/2, v),    alpha = (1 - confidence) / pairs

    with v = n - 1 when paired; for Welch's v follows from the spreads that the two models' runs happen to show, from
    2 n - 2 where these are equal to n - 1 where one has none.

    Args:
        runs: n of each model, two at least.
        confidence: of the study.
        pairs: of models.
        test: of two models' runs.
    """
    upper = 1 - (1 - confidence) / pairs / 2
    return t_quantile(upper, runs - 1 if test == "paired" else 2 * runs - 2), t_quantile(upper, runs - 1)


def detectable_difference(deviation: float, runs: int, confidence: float, pairs: int = 1,
                          test: SeedTest = "paired") -> float | None:
    """The smallest true difference that the test finds with a power of 0.8; None with a single run.

        d e,    e = sd / sqrt(n) paired, sd sqrt(2 / n) for Welch's,    P(T' > t) = 0.8

    where T' is noncentral t with shift d and n - 1 or 2 n - 2 degrees of freedom, and t what must be exceeded
    (`critical_t`), for Welch's with the chances of the spreads of n runs. With few runs it is well above the sum of two
    quantiles that is often used: by a fifth with three paired runs and fifteen pairs.

    Args:
        deviation: standard deviation from run to run: of the difference between two models when paired, of one
            model's bits per byte, the same for both, for Welch's.
        runs: n of each model.
        confidence: of the study.
        pairs: of models; the first step of Holm's correction divides alpha by it.
        test: of two models' runs.
    """
    if runs < 2:
        return None
    upper = 1 - (1 - confidence) / pairs / 2
    return deviation * math.sqrt((1 if test == "paired" else 2) / runs) * _shift(runs, upper, test)


@functools.lru_cache(maxsize=1024)
def _shift(runs: int, upper: float, test: SeedTest) -> float:
    """In standard errors, with which the test finds a difference with that power."""
    if test == "paired":
        return t_shift(POWER, [(t_quantile(upper, runs - 1), 1.0)], runs - 1)
    # The share r that one model's variance has of both is Beta((n-1)/2, (n-1)/2), independent of their sum; with
    # r = sin^2 x, x has the density (sin x cos x)^(n-2), which is even about 45 degrees.
    places, weights = quadrature(0.0, math.pi / 4, panels=1)
    chances = weights * (np.sin(places) * np.cos(places)) ** (runs - 2)
    freedoms = (runs - 1) / (np.sin(places) ** 4 + np.cos(places) ** 4)
    limits = [(t_quantile(upper, freedom), chance) for freedom, chance in
              zip(freedoms.tolist(), (chances / chances.sum()).tolist(), strict=True)]
    return t_shift(POWER, limits, 2 * runs - 2)


def paired_deviation(repeats: Mapping[str, Sequence[float]]) -> float | None:
    """Standard deviation of the difference between two models, pooled over all pairs; None without two models that
    were run at least twice with the same pairs of seeds.

    Args:
        repeats: bits per byte of each model, in the same order of seeds.
    """
    known = [values for values in repeats.values() if len(values) > 1]
    spreads = [float(np.var(np.subtract(a, b), ddof=1)) for a, b in itertools.combinations(known, 2)]
    return math.sqrt(sum(spreads) / len(spreads)) if spreads else None

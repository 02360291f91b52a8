"""Student's t distribution, central and noncentral, and the differences that a t test of so many runs detects.

Neither PyTorch nor NumPy has the distribution or the incomplete beta function.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch

SeedTest: TypeAlias = Literal["welch", "paired"]
"""Of two models' runs: Welch's, which takes all runs as independent, or paired by number, as those of one
number have the same seeds."""

POWER = 0.8
TINY = 1e-300
PRECISION = 1e-15
TERMS = 10_000
STEP = 9.0
PANELS, NODES = 24, 16
"""Of the quadrature by Gauss and Legendre."""
FEWER = 4
"""Panels where there is a second integral around it: with three runs or more a difference is within 1 % so."""
VALUES = 65
"""Of a critical t between its two ends, which are interpolated: it is within 1e-4 of itself so."""


def t_two_sided(t: float, freedom: float) -> float:
    """P(|T| >= |t|) = I_x(freedom/2, 1/2) with x = freedom / (freedom + t^2) (Abramowitz and Stegun 1964, 26.7.1)."""
    if math.isinf(t):
        return 0.0
    if abs(t) < 1:  # x is near one, and only its distance from one has digits
        return 1 - incomplete_beta(t * t / (freedom + t * t), 0.5, freedom / 2)
    return incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


@functools.lru_cache(maxsize=1024)
def t_quantile(probability: float, freedom: float) -> float:
    """The value below which T lies with that probability, above 0 and below 1."""
    if not 0 < probability < 1:
        raise ValueError(f"a quantile of {probability}: a probability lies between 0 and 1, both excluded")
    if probability == 0.5:
        return 0.0
    tail = 2 * min(probability, 1 - probability)
    high = _root(lambda t: tail - t_two_sided(t, freedom))
    return high if probability > 0.5 else -high


def mixed_two_sided(t: float, tails: Sequence[tuple[float, float]]) -> float:
    """P(|T| >= |t|) where T is a Student t with one of several degrees of freedom.

    Args:
        tails: pairs of a probability, all of which sum to one, and degrees of freedom.
    """
    return math.fsum(weight * t_two_sided(t, freedom) for weight, freedom in tails)


def mixed_quantile(confidence: float, tails: Sequence[tuple[float, float]]) -> float:
    """The value above zero between whose opposite and itself that T lies with this probability."""
    return _root(lambda t: (1 - confidence) - mixed_two_sided(t, tails))


def above(limit: Callable[[np.ndarray], np.ndarray], breaks: Sequence[np.ndarray], freedom: float, shift: float,
          panels: int = PANELS) -> np.ndarray:
    """P(Z + shift > limit(S)), S^2 = chi^2 / freedom, for each of N limits, [N].

        integral over s of Phi(shift - limit(s)) f(s),    f(s) = 2 (v/2)^(v/2) / Gamma(v/2) s^(v-1) exp(-v s^2 / 2)

    With the limit t s it is the power of a t test with the critical value t, the upper tail of the noncentral t
    distribution (Johnson, Kotz and Balakrishnan 1995, chapter 31).

    Args:
        limit: from places, [N, P], to values.
        breaks: two places, [N, 1], up to which Phi is one and from which on it is zero: it is so to sixteen digits nine
            deviations from its step.
        freedom: of S.
    """
    half = freedom / 2
    constant = math.log(2) + half * math.log(half) - math.lgamma(half)
    # Beyond these the density is below 1e-16 of its height.
    ends = max(TINY, 1 - STEP / math.sqrt(freedom)), 1 + STEP / math.sqrt(freedom)
    start, end = (np.clip(each, *ends) for each in breaks)
    total = np.zeros(len(start))
    for low, high in ((np.full_like(start, ends[0]), start), (start, end)):
        s, weights = quadrature(low, high, panels)
        density = np.exp(constant + (freedom - 1) * np.log(s) - half * s * s)
        reached = torch.erfc(torch.from_numpy((limit(s) - shift) / math.sqrt(2))).numpy() / 2
        total += (weights * density * reached).sum(1)
    return total


def quadrature(low: np.ndarray, high: np.ndarray, panels: int = PANELS) -> tuple[np.ndarray, np.ndarray]:
    """Places and weights of Gauss and Legendre in panels of one width, [N, P], between ends, [N, 1]."""
    units, weights = _units(panels)
    return low + (high - low) * units, (high - low) * weights


@functools.cache
def _units(panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Places and weights between 0 and 1."""
    places, weights = np.polynomial.legendre.leggauss(NODES)
    return (np.arange(panels)[:, None] + (places + 1) / 2).ravel() / panels, np.tile(weights, panels) / (2 * panels)


def _root(rising: Callable[[float], float]) -> float:
    """Where a rising function of numbers above zero meets zero, by the regula falsi of Illinois."""
    low, high = 0.0, 1.0
    below, above = rising(low), rising(high)
    while above < 0:
        low, below, high = high, above, 2 * high
        above = rising(high)
    before, side = math.nan, 0
    for _ in range(TERMS):
        middle = (low * above - high * below) / (above - below)
        found = rising(middle)
        if found == 0 or abs(middle - before) <= 1e-15 * middle or not low < middle < high:
            return middle
        # The bound that stays twice has its value halved, so that neither stays for ever.
        if found < 0:
            low, below, above, side = middle, found, above / 2 if side < 0 else above, -1
        else:
            high, above, below, side = middle, found, below / 2 if side > 0 else below, 1
        before = middle
    raise AssertionError("the search for a root does not converge")


def incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), regularised, by its continued fraction (Press et al. 2007, section 6.4)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's method."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, TERMS):
        for term in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                     -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < PRECISION:
            return value
    raise AssertionError(f"the continued fraction of I_{x}({a}, {b}) does not converge")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > TINY else TINY


def critical_t(runs: int, confidence: float, pairs: int, test: SeedTest) -> tuple[float, float]:
    """The value that |t| must exceed at the first step of Holm's correction: at the least and at the most.

        t_(1-alpha/2, v),    alpha = (1 - confidence) / pairs

    with v = n - 1 when paired; for Welch's v follows from the spreads that the two models' runs happen to show, from
    2 n - 2 where these are equal to n - 1 where one has none.

    Args:
        runs: n of each model, two at least.
    """
    upper = 1 - (1 - confidence) / pairs / 2
    return t_quantile(upper, runs - 1 if test == "paired" else 2 * runs - 2), t_quantile(upper, runs - 1)


def detectable_difference(deviation: float, runs: int, confidence: float, pairs: int = 1, test: SeedTest = "paired",
                          documents: tuple[float, float] = (0.0, 1.0)) -> float | None:
    """The smallest true difference that the test over both sources finds with a power of 0.8; None with a single run.

        d e,    e^2 = e_s^2 + e_d^2,    e_s = sd / sqrt(n) paired, sd sqrt(2 / n) for Welch's

    where d is the shift of `detectable_shift`. With few runs it is well above the sum of two quantiles that is often
    used: by a fifth with three paired runs and fifteen pairs.

    Args:
        deviation: standard deviation from run to run: of the difference between two models when paired, of one
            model's bits per byte, the same for both, for Welch's.
        runs: n of each model.
        pairs: of models; the first step of Holm's correction divides alpha by it.
        documents: e_d, the standard error of a difference from document to document, and its degrees of freedom.
    """
    if runs < 2:
        return None
    upper = 1 - (1 - confidence) / pairs / 2
    over_seeds = deviation * math.sqrt((1 if test == "paired" else 2) / runs)
    whole = math.hypot(over_seeds, documents[0])
    return whole and whole * detectable_shift(runs, upper, test, (over_seeds / whole) ** 2, documents[1])


@functools.lru_cache(maxsize=1024)
def detectable_shift(runs: int, upper: float, test: SeedTest, share: float = 1.0, others: float = 1.0) -> float:
    """The difference, in standard errors, that `weft.comparison.statistics.combined_test` finds with a power of 0.8.

        P(Z + d > c(r) sqrt(q x + (1 - q) y)) = 0.8,    r = q x / (q x + (1 - q) y)

    x and y: chi^2 / v of the two estimated variances; c: the value that |t| must exceed where the runs seem to have the
    share r of the variance. For Welch's, v of c follows from the spreads that the two models' runs happen to show.

    Args:
        runs: n of each model.
        upper: probability below the upper critical value.
        share: q, that the runs have of the variance; 1: documents do not vary.
        others: degrees of freedom of the documents' error.
    """
    share = max(share, 1e-9)
    over_documents, chances = _deviations(others) if share < 1 else (np.zeros((1, 1)), np.ones(1))
    fixed = (1 - share) * over_documents**2
    cases = [(chance, *_limit(upper, freedom, others, share, fixed)) for freedom, chance in _freedoms(runs, test)]
    freedom, panels = (runs - 1) * (1 if test == "paired" else 2), PANELS if share == 1 else FEWER

    def lacking(shift: float) -> float:
        found = 0.0
        for chance, limit, ends in cases:
            breaks = [np.sqrt(np.maximum(0.0, (max(0.0, shift + step) / t) ** 2 - fixed) / share)
                      for t, step in zip(ends, (-STEP, STEP), strict=True)]
            found += chance * float(chances @ above(limit, breaks, freedom, shift, panels))
        return found - POWER

    return _root(lacking)


def _deviations(freedom: float) -> tuple[np.ndarray, np.ndarray]:
    """Values of sqrt(chi^2 / freedom), [N, 1], and their probabilities, [N]."""
    spread = np.array([[5 / math.sqrt(freedom)]])
    y, weights = quadrature(np.maximum(TINY, 1 - spread), 1 + spread, panels=1)
    chances = weights * np.exp((freedom - 1) * np.log(y) - freedom / 2 * (y * y - 1))
    return y.T, chances[0] / chances.sum()


def _freedoms(runs: int, test: SeedTest) -> list[tuple[float, float]]:
    """The degrees of freedom that the test of runs has, with their chances."""
    if test == "paired":
        return [(runs - 1.0, 1.0)]
    # The share r that one model's variance has of both is Beta((n-1)/2, (n-1)/2), independent of their sum; with
    # r = sin^2 x, x has the density (sin x cos x)^(n-2), which is even about 45 degrees.
    (places,), (weights,) = quadrature(np.zeros((1, 1)), np.full((1, 1), math.pi / 4), panels=1)
    chances = weights * (np.sin(places) * np.cos(places)) ** (runs - 2)
    freedoms = (runs - 1) / (np.sin(places) ** 4 + np.cos(places) ** 4)
    return list(zip(freedoms.tolist(), (chances / chances.sum()).tolist(), strict=True))


def _limit(upper: float, freedom: float, others: float, share: float,
           fixed: np.ndarray) -> tuple[Callable[[np.ndarray], np.ndarray], tuple[float, float]]:
    """The value that Z + shift must exceed by the deviation of the runs, and the greatest and the least critical t."""
    t = t_quantile(upper, freedom)
    if share == 1:
        return lambda s: t * s, (t, t)
    least, most = sorted((t, t_quantile(upper, others)))
    if most < least * (1 + 1e-9):
        return lambda s: t * np.sqrt(share * s * s + fixed), (most, least)
    # That share of the variance with which a value is critical is known in closed form, not the value.
    values = np.geomspace(least, most, VALUES)
    own, other = (np.array([t_two_sided(each, v) for each in values.tolist()]) for v in (freedom, others))
    shares = (2 * (1 - upper) - other) / (own - other)
    order = np.argsort(shares)

    def limit(s: np.ndarray) -> np.ndarray:
        whole = share * s * s + fixed
        found: np.ndarray = np.interp(share * s * s / whole, shares[order], values[order]) * np.sqrt(whole)
        return found

    return limit, (most, least)


def spread_interval(deviation: float, freedom: float, confidence: float) -> tuple[float, float]:
    """Bounds of a standard deviation that was estimated with so many degrees of freedom from normal values.

        s sqrt(v / q),    q: the upper and the lower quantile of chi-square with v degrees of freedom
    """
    def quantile(probability: float) -> float:
        return _root(lambda x: chi_square_below(x, freedom) - probability)

    high, low = quantile((1 + confidence) / 2), quantile((1 - confidence) / 2)
    return deviation * math.sqrt(freedom / high), deviation * math.sqrt(freedom / low)


def chi_square_below(x: float, freedom: float) -> float:
    """P(X <= x), x not below zero: the regularised incomplete gamma function P(freedom/2, x/2), by its series
    (Abramowitz and Stegun 1964, 6.5.29)."""
    half, z = freedom / 2, x / 2
    if z == 0:
        return 0.0
    term = total = 1 / half
    for n in range(1, TERMS):
        term *= z / (half + n)
        total += term
        if term < PRECISION * total:
            return min(1.0, total * math.exp(half * math.log(z) - z - math.lgamma(half)))
    raise AssertionError(f"the series of P({half}, {z}) does not converge")


def paired_deviation(repeats: Mapping[str, Sequence[float]]) -> float | None:
    """Standard deviation of the difference between two models, pooled over all pairs; None without two models that
    were run at least twice with the same pairs of seeds.

    Args:
        repeats: bits per byte of each model, in the same order of seeds.
    """
    known = [values for values in repeats.values() if len(values) > 1]
    spreads = [float(np.var(np.subtract(a, b), ddof=1)) for a, b in itertools.combinations(known, 2)]
    return math.sqrt(sum(spreads) / len(spreads)) if spreads else None


def pooled_deviation(samples: Sequence[Sequence[float]]) -> float | None:
    """Standard deviation within samples, pooled over those of two values or more; None without one."""
    known = [each for each in samples if len(each) > 1]
    freedom = sum(len(each) - 1 for each in known)
    squares = math.fsum((len(each) - 1) * float(np.var(each, ddof=1)) for each in known)
    return math.sqrt(squares / freedom) if freedom else None

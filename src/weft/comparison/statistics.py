"""Intervals, tests and their correction: what can be said from a few runs and one text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from weft.comparison.results import Interval
from weft.comparison.student import t_quantile, t_two_sided

POWER = 0.8
BOOTSTRAP = 10_000
"""Resamples."""
DRAWN = 5_000_000
"""Numbers that the bootstrap draws at once, which bounds its memory."""


class Test(NamedTuple):
    """An estimate with its interval, the variance it rests on, and the two-sided p-value of zero. Variance and p are
    None where a single value gives none."""

    interval: Interval
    variance: float | None
    p_value: float | None


def t_test(values: Sequence[float], confidence: float) -> Test:
    """The mean of independent values, by Student's t.

        mean +- t_(1-alpha/2, n-1) s / sqrt(n)

    Values that are all zero give p = 1; equal ones that are not, p = 0; a single one neither bounds nor p.
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Test(Interval(mean, None, None), None, None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    if len(set(values)) == 1:
        mean, variance = values[0], 0.0
    error = math.sqrt(variance / n)
    margin = t_quantile((1 + confidence) / 2, n - 1) * error
    p_value = t_two_sided(mean / error, n - 1) if error > 0 else float(mean == 0)
    return Test(Interval(mean, mean - margin, mean + margin), variance, p_value)


class Clusters(NamedTuple):
    """A model's summed nats, and the bytes they stand for, in each cluster of a text: a document, or a block."""

    nats: Float64[np.ndarray, " C"]
    bytes: Int64[np.ndarray, " C"]


def bootstrap_test(first: Clusters, second: Clusters, confidence: float, *, seed: int,
                   resamples: int = BOOTSTRAP) -> Test:
    """The difference of two models in bits per byte, resampled by cluster.

        (sum of nats_1 / sum of bytes_1 - sum of nats_2 / sum of bytes_2) / ln 2

    over clusters drawn with replacement, the same ones for both (Efron and Tibshirani 1993, chapter 6). The interval
    is of the percentiles; p is twice the smaller share of resamples on either side of zero.

    Args:
        first: and ``second``: of the same clusters.
        confidence: of the interval.
        seed: of the draws, the same for every pair of a study.
        resamples: how many.
    """
    if np.array_equal(first.nats, second.nats) and np.array_equal(first.bytes, second.bytes):
        return Test(Interval(0.0, 0.0, 0.0), 0.0, 1.0)
    count, draws = len(first.nats), np.random.default_rng(seed)
    means: list[np.ndarray] = []
    rows = max(1, DRAWN // count)
    for done in range(0, resamples, rows):
        chosen = draws.integers(0, count, (min(rows, resamples - done), count))
        means.append(_bits(first, chosen) - _bits(second, chosen))
    drawn, whole = np.concatenate(means), np.arange(count)[None]
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2]).tolist()
    tails = [(1 + int(side.sum())) / (resamples + 1) for side in (drawn <= 0, drawn >= 0)]
    mean = float((_bits(first, whole) - _bits(second, whole))[0])
    return Test(Interval(mean, low, high), float(drawn.var(ddof=1)), min(1.0, 2 * min(tails)))


def _bits(model: Clusters, chosen: Int64[np.ndarray, "R C"]) -> Float64[np.ndarray, " R"]:
    # Tokens that stand for no text can fill a cluster, but hardly all of those drawn.
    found: np.ndarray = model.nats[chosen].sum(1) / np.maximum(model.bytes[chosen].sum(1), 1) / math.log(2)
    return found


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


def tied_sets(means: Mapping[str, float], tied: Mapping[frozenset[str], bool]) -> tuple[tuple[str, ...], ...]:
    """Models from best to worst: each set is headed by its best and holds, of those behind it, the ones that are tied
    with it. A set that lies within an earlier one is left out.

    Args:
        means: bits per byte.
        tied: whether the corrected test leaves a pair together.
    """
    order = sorted(means, key=lambda name: (means[name], name))
    found: list[tuple[str, ...]] = []
    for place, head in enumerate(order):
        members = (head, *(name for name in order[place + 1:] if tied[frozenset((head, name))]))
        if not any(set(members) <= set(earlier) for earlier in found):
            found.append(members)
    return tuple(found)


def detectable_difference(deviation: float, runs: int, confidence: float, pairs: int = 1, *,
                          test: Literal["welch", "paired"] = "paired") -> float | None:
    """The smallest true difference that a t test finds with a power of 0.8, to the usual approximation that adds two
    quantiles; None with a single run.

        (t_(1-alpha/2) + t_0.8) sd sqrt(k / n),    k (n - 1) degrees of freedom, alpha = (1 - confidence) / pairs

    with k = 1 for pairs and k = 2 for two samples.

    Args:
        deviation: standard deviation between the runs of a model; with ``paired``, of the difference between two
            models' runs.
        runs: n.
        confidence: of the study.
        pairs: of models; the first step of Holm's correction divides alpha by it.
        test: of the difference.
    """
    if runs < 2:
        return None
    alpha, samples = (1 - confidence) / pairs, 2 if test == "welch" else 1
    freedom = samples * (runs - 1)
    return (t_quantile(1 - alpha / 2, freedom) + t_quantile(POWER, freedom)) * deviation * math.sqrt(samples / runs)


def paired_deviation(repeats: Mapping[str, Sequence[float]]) -> float | None:
    """Standard deviation of the difference between two models, pooled over all pairs; None without two models that
    were run at least twice with the same pairs of seeds.

    Args:
        repeats: bits per byte of each model, in the same order of seeds.
    """
    known = [values for values in repeats.values() if len(values) > 1]
    spreads = [float(np.var(np.subtract(a, b), ddof=1)) for a, b in itertools.combinations(known, 2)]
    return math.sqrt(sum(spreads) / len(spreads)) if spreads else None


def crosses(gaps: Sequence[Interval]) -> bool:
    """Whether the order changes on the way: some gap's interval lies wholly on the other side of zero from the last
    one's."""
    return bool(gaps) and _side(gaps[-1]) != 0 and any(_side(gap) == -_side(gaps[-1]) for gap in gaps[:-1])


def _side(gap: Interval) -> int:
    if gap.low is None or gap.high is None or gap.low <= 0 <= gap.high:
        return 0
    return 1 if gap.low > 0 else -1

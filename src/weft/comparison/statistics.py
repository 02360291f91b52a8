"""Intervals and tests: over runs by Student's t, over documents by the bootstrap, over both by the sum of their
variances, and their correction over pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from weft.comparison.student import SeedTest, mixed_quantile, mixed_two_sided, t_quantile, t_two_sided

BOOTSTRAP = 10_000
"""Resamples."""

DRAWN = 5_000_000
"""Numbers that are drawn at once, which bounds the memory."""

NORMAL = NormalDist()


@dataclass(frozen=True)
class Interval:
    """An estimate with a two-sided interval at the study's confidence; the bounds are None where one run gives none."""

    mean: float
    low: float | None
    high: float | None


def negated(interval: Interval) -> Interval:
    """The interval of the opposite sign."""
    low, high = (None if bound is None else -bound for bound in (interval.high, interval.low))
    return Interval(-interval.mean, low, high)


class Estimate(NamedTuple):
    """An estimate with its interval, the standard error it rests on, the two-sided p-value of zero, and the degrees of
    freedom of the error. All but the interval's mean are None where a single value gives none; the degrees of freedom
    also where the error has two sources."""

    interval: Interval
    error: float | None
    p_value: float | None
    freedom: float | None


def t_test(values: Sequence[float], confidence: float) -> Estimate:
    """The mean of independent values, by Student's t.

        mean +- t_(1-alpha/2, n-1) s / sqrt(n)

    Values that are all zero give p = 1; equal ones that are not, p = 0; a single one neither bounds nor p.
    """
    mean, variance = _moments(values)
    if variance is None:
        return Estimate(Interval(mean, None, None), None, None, None)
    return _estimate(mean, math.sqrt(variance / len(values)), len(values) - 1, confidence)


def welch_test(first: Sequence[float], second: Sequence[float], confidence: float) -> Estimate:
    """The difference of two means of independent values, whose variances may differ (Welch 1947).

        mean_1 - mean_2 +- t_(1-alpha/2, v) e,    e^2 = s_1^2 / n_1 + s_2^2 / n_2,
        v = e^4 / (s_1^4 / (n_1^2 (n_1 - 1)) + s_2^4 / (n_2^2 (n_2 - 1)))

    A single value on either side gives neither bounds nor p.
    """
    (mean, variance), (other, variance_of_other) = _moments(first), _moments(second)
    if variance is None or variance_of_other is None:
        return Estimate(Interval(mean - other, None, None), None, None, None)
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
        return Estimate(Interval(mean, mean, mean), 0.0, float(mean == 0), freedom)
    margin = t_quantile((1 + confidence) / 2, freedom) * error
    return Estimate(Interval(mean, mean - margin, mean + margin), error, t_two_sided(mean / error, freedom), freedom)


def combined_test(over_seeds: Estimate, over_documents: Estimate, confidence: float) -> Estimate:
    """The difference of two models for another seed and another text at once.

        e^2 = e_s^2 + e_d^2,    p = (e_s^2 P(|T_s| >= t) + e_d^2 P(|T_d| >= t)) / e^2,    t = difference / e

    Runs on one text vary by e_s alone, one set of runs on other texts by e_d alone, and a study that is repeated with
    both anew by the sum of their variances. Each source brings the tail of its own degrees of freedom, by its share of
    the variance. The two simpler rules tell equal models apart too often (`recipes/error_rates`): the larger of the two
    p-values meets a difference that is larger by sqrt 2 than either error where both are alike, and Satterthwaite's
    degrees of freedom trust an error of two or three runs that is small by chance.

    Args:
        over_seeds: of the runs on the text as it is.
        over_documents: of resampled texts with the runs as they are; runs that agree in every document leave no doubt.
    """
    mean = over_seeds.interval.mean
    if over_documents.error == 0 and over_documents.interval.mean == 0:
        return Estimate(Interval(0.0, 0.0, 0.0), 0.0, 1.0, None)
    if over_seeds.error is None or over_seeds.freedom is None:
        return Estimate(Interval(mean, None, None), None, None, None)
    assert over_documents.error is not None and over_documents.freedom is not None, "a bootstrap always has both"
    error = math.hypot(over_seeds.error, over_documents.error)
    if error == 0:
        return Estimate(Interval(mean, mean, mean), 0.0, float(mean == 0), None)
    tails = _tails(over_seeds, over_documents)
    margin = mixed_quantile(confidence, tails) * error
    return Estimate(Interval(mean, mean - margin, mean + margin), error, mixed_two_sided(mean / error, tails), None)


def _tails(over_seeds: Estimate, over_documents: Estimate) -> tuple[tuple[float, float], tuple[float, float]]:
    """Each source's share of the variance, with its degrees of freedom."""
    assert over_seeds.error is not None and over_documents.error is not None, "both errors are known"
    assert over_seeds.freedom is not None and over_documents.freedom is not None, "so are their degrees of freedom"
    share = over_seeds.error**2 / (over_seeds.error**2 + over_documents.error**2)
    return (share, over_seeds.freedom), (1 - share, over_documents.freedom)


def equivalence_p(over_seeds: Estimate, over_documents: Estimate, margin: float) -> float | None:
    """The p-value of a difference that is at least ``margin``, either way, for another seed and another text at once: a
    small one says that the models are as good as each other within the margin.

        max of P(T >= (margin - difference) / e) and P(T >= (margin + difference) / e)

    Two one-sided tests (Schuirmann 1987), with the error and the tails of `combined_test`. None with a single run of a
    model, unless both have the same in every document.

    Args:
        over_seeds: as for `combined_test`.
        margin: bits per byte, above zero.
    """
    far = margin - abs(over_seeds.interval.mean)
    if over_documents.error == 0 and over_documents.interval.mean == 0:
        return 0.0
    if over_seeds.error is None or over_documents.error is None:
        return None
    if over_seeds.error == over_documents.error == 0:
        return float(far <= 0)
    whole = math.hypot(over_seeds.error, over_documents.error)
    half = mixed_two_sided(far / whole, _tails(over_seeds, over_documents)) / 2
    return half if far > 0 else 1 - half


def effective_clusters(sizes: Sequence[int]) -> float:
    """The number of equal clusters whose mean is as uncertain as that of these (Kish 1965, section 8.2).

        (sum of sizes)^2 / (sum of their squares)

    Args:
        sizes: bytes of each cluster, at least one above zero.
    """
    return sum(sizes) ** 2 / sum(size ** 2 for size in sizes)


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


def resampled(nats: Sequence[Sequence[float]], sizes: Sequence[int], *, seed: int,
              resamples: int = BOOTSTRAP) -> Float64[np.ndarray, "N R"]:
    """Bits per byte of N runs on R texts of C clusters each, drawn with replacement, the same ones for all runs.

        sum of nats / sum of bytes / ln 2

    Every draw is taken from the raw numbers of PCG64, which NumPy promises to keep, so that an interval can be worked
    out again later and elsewhere.

    Args:
        nats: N times C, summed over each cluster: a document, or a block.
        sizes: C, bytes that they stand for.
        resamples: R.
    """
    count = len(sizes)
    both = np.vstack([np.array(nats, dtype=np.float64).reshape(-1, count), np.array(sizes, dtype=np.float64)])
    sums = np.concatenate([both @ times_of(chosen).T
                           for chosen in draws(count, seed, resamples, max(1, DRAWN // count))], axis=1)
    # Tokens that stand for no text can fill a cluster, but hardly all of those drawn.
    bits: np.ndarray = sums[:-1] / np.maximum(sums[-1], 1) / math.log(2)
    return bits


def draws(count: int, seed: int, resamples: int, at_once: int) -> Iterator[Int64[np.ndarray, "Q C"]]:
    """Yield ``resamples`` samples of C places each, drawn with replacement, at most ``at_once`` at a time, which bounds
    the memory. The remainder of 64 bits favours some places by one part in 10^13 at the most."""
    source = np.random.PCG64(seed)
    for done in range(0, resamples, at_once):
        rows = min(at_once, resamples - done)
        yield (source.random_raw(rows * count) % np.uint64(count)).astype(np.int64).reshape(rows, count)


def times_of(chosen: Int64[np.ndarray, "Q C"]) -> Float64[np.ndarray, "Q C"]:
    """The number of times that each place is in each sample."""
    rows, count = chosen.shape
    found = np.bincount((chosen + count * np.arange(rows)[:, None]).ravel(), minlength=rows * count)
    return found.reshape(rows, count).astype(np.float64)


def bootstrap_test(mean: float, drawn: Float64[np.ndarray, " R"], clusters: float, confidence: float) -> Estimate:
    """A figure of the whole text from the same figure of resampled ones: percentiles, expanded for few clusters.

    A resampled text varies too little by sqrt((C - 1) / C), and percentiles are a normal approximation. Both are made
    good by taking percentiles further out (Hesterberg 2015, "What teachers should know about the bootstrap", 5.2):

        share = Phi(-sqrt(C / (C - 1)) t_(1-alpha/2, C-1))

    and p from the smaller share of resamples on either side of zero by the same rule the other way round. Where none
    lies on the other side, the distance from zero in standard errors stands in, if it is larger than the number of
    resamples can say: many pairs must not be tied for want of draws.

    Args:
        drawn: of the resampled ones.
        clusters: C, more than one: of clusters of unequal size the effective number (`effective_clusters`), since a
            text that a few long documents make up varies as those do.
    """
    # A text that is almost one document leaves less than a degree of freedom, for which no quantile says anything.
    freedom = max(1.0, clusters - 1)
    expansion = math.sqrt((freedom + 1) / freedom)
    share = NORMAL.cdf(-expansion * t_quantile((1 + confidence) / 2, freedom))
    error = float(drawn.std(ddof=1))
    if error == 0:
        return Estimate(Interval(mean, mean, mean), 0.0, float(mean == 0), freedom)
    low, high = np.quantile(drawn, [share, 1 - share]).tolist()
    beyond = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    distance = -NORMAL.inv_cdf(min(0.5, (1 + beyond) / (len(drawn) + 1)))
    if beyond == 0:
        distance = max(distance, abs(mean) / error)
    p_value = t_two_sided(distance / expansion, freedom)
    return Estimate(Interval(mean, low, high), expansion * error, p_value, freedom)

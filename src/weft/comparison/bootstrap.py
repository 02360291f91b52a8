"""What another text of the same kind might say: resampling the test text by its documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from jaxtyping import Float64

from weft.comparison.differences import Interval
from weft.comparison.statistics import BOOTSTRAP, Estimate
from weft.comparison.student import t_quantile, t_two_sided

DRAWN = 5_000_000
"""Numbers that are drawn at once, which bounds the memory."""
NORMAL = NormalDist()


def resampled(nats: Sequence[Sequence[float]], sizes: Sequence[int], *, seed: int,
              resamples: int = BOOTSTRAP) -> Float64[np.ndarray, "N R"]:
    """Bits per byte of N runs on R texts of C clusters each, drawn with replacement, the same ones for all runs.

        sum of nats / sum of bytes / ln 2

    Every draw is taken from the raw numbers of PCG64, which NumPy promises to keep, so that an interval can be worked
    out again later and elsewhere.

    Args:
        nats: N times C, summed over each cluster: a document, or a block.
        sizes: C, bytes that they stand for.
        seed: of the draws.
        resamples: R.
    """
    count, source = len(sizes), np.random.PCG64(seed)
    both = np.vstack([np.array(nats, dtype=np.float64).reshape(-1, count), np.array(sizes, dtype=np.float64)])
    rows, found = max(1, DRAWN // count), []
    for done in range(0, resamples, rows):
        some = min(rows, resamples - done)
        # The remainder of 64 bits favours some clusters by one part in 10^14 at the most.
        chosen = (source.random_raw(some * count) % np.uint64(count)).astype(np.int64).reshape(some, count)
        times = np.bincount((chosen + count * np.arange(some)[:, None]).ravel(), minlength=some * count)
        found.append(both @ times.reshape(some, count).T.astype(np.float64))
    sums = np.concatenate(found, axis=1)
    # Tokens that stand for no text can fill a cluster, but hardly all of those drawn.
    bits: np.ndarray = sums[:-1] / np.maximum(sums[-1], 1) / math.log(2)
    return bits


def bootstrap_test(mean: float, drawn: Float64[np.ndarray, " R"], clusters: int, confidence: float) -> Estimate:
    """A figure of the whole text from the same figure of resampled ones: percentiles, expanded for few clusters.

    A resampled text varies too little by sqrt((C - 1) / C), and percentiles are a normal approximation. Both are made
    good by taking percentiles further out (Hesterberg 2015, "What teachers should know about the bootstrap", 5.2):

        share = Phi(-sqrt(C / (C - 1)) t_(1-alpha/2, C-1))

    and p from the smaller share of resamples on either side of zero by the same rule the other way round. Where none
    lies on the other side, the distance from zero in standard errors stands in, if it is larger than the number of
    resamples can say: many pairs must not be tied for want of draws.

    Args:
        mean: of the whole text.
        drawn: of the resampled ones.
        clusters: C, two at least.
        confidence: of the interval.
    """
    expansion = math.sqrt(clusters / (clusters - 1))
    share = NORMAL.cdf(-expansion * t_quantile((1 + confidence) / 2, clusters - 1))
    error = float(drawn.std(ddof=1))
    if error == 0:
        return Estimate(Interval(mean, mean, mean), 0.0, float(mean == 0))
    low, high = np.quantile(drawn, [share, 1 - share]).tolist()
    beyond = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    distance = -NORMAL.inv_cdf(min(0.5, (1 + beyond) / (len(drawn) + 1)))
    if beyond == 0:
        distance = max(distance, abs(mean) / error)
    p_value = t_two_sided(distance / expansion, clusters - 1)
    return Estimate(Interval(mean, low, high), expansion * error, p_value)

"""T5's bucketed relative position bias (Raffel et al. 2020, section 2.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def bucket(relative: int, bidirectional: bool = True, n_buckets: int = 32, max_distance: int = 128) -> int:
    """Bucket of the relative position key - query: exact for small distances, then log-spaced up to max_distance.

    Bidirectional: the upper half of the buckets is for keys after the query. Unidirectional: keys after the query
    share bucket 0. The logarithm is taken in float32 and truncated, as in the released code. Compared with
    transformers' T5Attention._relative_position_bucket (stored numbers).
    """
    if bidirectional:
        n_buckets //= 2
        start = n_buckets if relative > 0 else 0
        distance = abs(relative)
    else:
        start = 0
        distance = max(-relative, 0)
    exact = n_buckets // 2
    if distance < exact:
        return start + distance
    ratio = np.log(np.float32(distance) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    return start + min(exact + int(ratio * np.float32(n_buckets - exact)), n_buckets - 1)


def bias(
    table: Array,
    query_positions: Sequence[int],
    key_positions: Sequence[int],
    bidirectional: bool = True,
    max_distance: int = 128,
) -> Array:
    """bias[h, i, j] = table[bucket(key j - query i), h] for table[n_buckets, H]; added to the scores."""
    out = np.zeros((table.shape[1], len(query_positions), len(key_positions)))
    for t, i in enumerate(query_positions):
        for s, j in enumerate(key_positions):
            out[:, t, s] = table[bucket(j - i, bidirectional, table.shape[0], max_distance)]
    return out

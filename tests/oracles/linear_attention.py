"""Attention by feature maps, retention and gated linear attention, token by token, for one row of one head.

Compared with naive implementations of others: `weighted_mean` with the linear attention and the positive random
features of performer-pytorch (its epsilon set to 0), `decaying_memory` with the recurrence of gated linear attention in
flash-linear-attention (by feature, and with one decay for all features as retention has it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def elu_plus_one(x: Array) -> Array:
    """elu(x) + 1; Katharopoulos et al. 2020, equation 7."""
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def positive_features(x: Array, directions: Array) -> Array:
    """exp(W x - |x|^2 / 2) / sqrt(M) of x [T,E] scaled by E^(-1/4), W [M,E]; Choromanski et al. 2021, equation 5."""
    x = x / x.shape[1] ** 0.25
    return np.exp(x @ directions.T - (x * x).sum(1, keepdims=True) / 2) / np.sqrt(len(directions))


def weighted_mean(q: Array, k: Array, v: Array, *, causal: bool = True, begins: Sequence[bool] | None = None,
                  turned: tuple[Array, Array] | None = None, normalise: bool = True) -> Array:
    """y_t = sum_s (q_t.k_s) v_s / sum_s q_t.k_s over the tokens s of t's document, up to t if it is causal.

    Katharopoulos et al. 2020, equation 4; with rotated queries and keys ``turned`` in the numerator alone, Su et al.
    2021, equation 19; without the denominator, Schlag et al. 2021, equation 5.
    """
    document = np.cumsum([False] * len(q) if begins is None else begins)
    above, keys = (q, k) if turned is None else turned
    rows = []
    for t in range(len(q)):
        seen = [s for s in range(len(q)) if document[s] == document[t] and (s <= t or not causal)]
        total = sum((above[t] @ keys[s]) * v[s] for s in seen)
        rows.append(total / sum(q[t] @ k[s] for s in seen) if normalise else total)
    return np.array(rows)


def decaying_memory(q: Array, k: Array, v: Array, decay: Array, begins: Sequence[bool] | None = None) -> Array:
    """S_t = diag(a_t) S_{t-1} + k_t v_t^T, o_t = q_t S_t, for a [T,E]; zero before every document. Sun et al. 2023,
    equation 6; Yang et al. 2024, equation 3."""
    state, rows = np.zeros((q.shape[1], v.shape[1])), []
    for t in range(len(q)):
        state = np.zeros_like(state) if begins is not None and begins[t] else decay[t][:, None] * state
        state = state + np.outer(k[t], v[t])
        rows.append(q[t] @ state)
    return np.array(rows)

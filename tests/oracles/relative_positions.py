"""Relative positions in scores and values, one pair of a query and a key of one head at a time.

q[T, E] and k[S, E] are one head's; the query of index t stands at position query_positions[t] and so on. Compared with
transformers' SeamlessM4Tv2 (Shaw's keys), DeBERTa, DeBERTa-v2 and Transformer-XL attention, and with TUPE's released
code (stored numbers); Shaw's values with equation 3 by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .attention import linear, weights

Array = NDArray[Any]


def attention(
    x: Array,
    w_q: Array,
    w_k: Array,
    w_v: Array,
    w_o: Array,
    n_heads: int,
    n_kv_heads: int,
    score: Callable[[int, Array, Array], Array],
    mask: Array,
    value: Callable[[Array], Array] | None = None,
    biases: Sequence[Array | None] = (None, None, None),
) -> Array:
    """Heads side by side in the projections' rows; score(h, q, k) gives all scores of head h, [T, S], scaled; value(w)
    is added to each head's output, [T, E]."""
    q, k, v = (linear(x, weight, bias) for weight, bias in zip((w_q, w_k, w_v), biases, strict=True))
    heads = np.split(q, n_heads, axis=1)
    groups = list(zip(np.split(k, n_kv_heads, axis=1), np.split(v, n_kv_heads, axis=1), strict=True))
    out = []
    for h, own in enumerate(heads):
        keys, values = groups[h * n_kv_heads // n_heads]
        w = weights(score(h, own, keys), mask=mask)
        out.append(w @ values + (0.0 if value is None else value(w)))
    return linear(np.hstack(out), w_o)


def shaw_scores(q: Array, k: Array, table: Array, clip: int) -> Array:
    """q_i . (k_j + table[clip(j - i) + clip]) / sqrt(E); Shaw et al. 2018, equation 4."""
    out = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        for j in range(len(k)):
            relative = table[min(max(j - i, -clip), clip) + clip]
            out[i, j] = q[i] @ (k[j] + relative) / math.sqrt(q.shape[1])
    return out


def shaw_values(w: Array, table: Array, clip: int) -> Array:
    """sum_j w_ij table[clip(j - i) + clip]; Shaw et al. 2018, equation 3, without the values themselves."""
    out = np.zeros((w.shape[0], table.shape[1]))
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            out[i] += w[i, j] * table[min(max(j - i, -clip), clip) + clip]
    return out


def tupe_scores(
    q: Array, k: Array, p_q: Array, p_k: Array, bias: Array | None = None, theta: Sequence[float] | None = None
) -> Array:
    """(q_i . k_j + p_q[i] . p_k[j]) / sqrt(2E) + bias[i, j]; Ke et al. 2021, equations 7 and 8. With theta all but the
    content is theta[0] where i = 0, and theta[1] where j = 0 < i (equation 10)."""
    scale = 1 / math.sqrt(2 * q.shape[1])
    out = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        for j in range(len(k)):
            position = p_q[i] @ p_k[j] * scale + (0.0 if bias is None else bias[i, j])
            if theta is not None and (i == 0 or j == 0):
                position = theta[0] if i == 0 else theta[1]
            out[i, j] = q[i] @ k[j] * scale + position
    return out


def log_position(distance: int, span: int, longest: int) -> int:
    """DeBERTa v2's bucket of a signed distance: itself up to span / 2, then rounded-up steps of its logarithm, in
    float32."""
    middle = span // 2
    if abs(distance) <= middle:
        return distance
    ratio = np.log(np.float32(abs(distance)) / np.float32(middle)) / np.float32(math.log((longest - 1) / middle))
    return int(math.copysign(int(np.ceil(ratio * np.float32(middle - 1))) + middle, distance))


def deberta_scores(q: Array, k: Array, k_r: Array | None, q_r: Array | None, longest: int | None = None) -> Array:
    """(q_i . k_j + q_i . k_r[row] + k_j . q_r[row]) / sqrt(n E), n terms; He et al. 2021, equation 4, with the row
    clip(i - j + span, 0, 2 span - 1) for both, as in the released code."""
    terms = 1 + (k_r is not None) + (q_r is not None)
    span = next(len(table) for table in (k_r, q_r) if table is not None) // 2
    out = np.zeros((len(q), len(k)))
    for i in range(len(q)):
        for j in range(len(k)):
            distance = i - j if longest is None else log_position(i - j, span, longest)
            row = min(max(distance + span, 0), 2 * span - 1)
            total = q[i] @ k[j]
            if k_r is not None:
                total = total + q[i] @ k_r[row]
            if q_r is not None:
                total = total + k[j] @ q_r[row]
            out[i, j] = total / math.sqrt(terms * q.shape[1])
    return out


def transformer_xl_scores(
    q: Array,
    k: Array,
    u: Array,
    v: Array,
    w_r: Array,
    query_positions: Sequence[float],
    key_positions: Sequence[float],
    clamp: float | None = None,
    base: float = 10000.0,
) -> Array:
    """((q_i + u) . k_j + (q_i + v) . w_r R) / sqrt(E), w_r[E, D], R the sines and then the cosines of the distance
    i - j, held within -clamp .. clamp; Dai et al. 2019, section 3.3."""
    theta = np.array([base ** (-2 * f / w_r.shape[1]) for f in range(w_r.shape[1] // 2)])
    out = np.zeros((len(q), len(k)))
    for t, i in enumerate(query_positions):
        for s, j in enumerate(key_positions):
            distance = i - j if clamp is None else min(max(i - j, -clamp), clamp)
            waves = np.concatenate([np.sin(distance * theta), np.cos(distance * theta)])
            out[t, s] = ((q[t] + u) @ k[s] + (q[t] + v) @ (w_r @ waves)) / math.sqrt(q.shape[1])
    return out

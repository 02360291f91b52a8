"""RWKV's time mixing, versions 4 to 7, token by token from the papers' equations, for one row.

Compared once with inference by the package rwkv 0.8.30 (`BlinkDL/ChatRWKV`), float32, on random files of all four
versions: logits of size 12 to 15 were within 3e-5 of Weft's, the whole row at once and one token after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Begins = Sequence[bool] | None


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    """x / (1 + exp(-x))."""
    return x * sigmoid(x)


def shifted(x: Array, begins: Begins) -> Array:
    """x_{t-1}, zero before every document."""
    before = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
    return before if begins is None else np.where(np.array(begins)[:, None], 0, before)


def documents(steps: int, begins: Begins) -> Iterator[tuple[int, bool]]:
    """Each token, and whether a document begins with it."""
    return ((t, t == 0 or (begins is not None and begins[t])) for t in range(steps))


def four(k: Array, v: Array, decay: Array, bonus: Array, begins: Begins = None) -> Array:
    """wkv_t as a sum over all earlier tokens of the document; Peng et al. 2023, equation 16, with w = -decay there."""
    rows, first = [], 0
    for t, begin in documents(len(k), begins):
        first = t if begin else first
        exponents = np.stack([(t - 1 - s) * decay + k[s] for s in range(first, t)] + [bonus + k[t]])
        weights = np.exp(exponents - exponents.max(0))
        rows.append((weights * v[first:t + 1]).sum(0) / weights.sum(0))
    return np.array(rows)


def matrix(r: Array, k: Array, v: Array, decay: Array, bonus: Array, begins: Begins = None) -> Array:
    """o_t = r_t (S_{t-1} + diag(u) k_t^T v_t), S_t = diag(a_t) S_{t-1} + k_t^T v_t for one head and a [T,E]; Peng et
    al. 2024, equations 17 to 19."""
    rows = []
    for t, begin in documents(len(k), begins):
        state = np.zeros((k.shape[1], v.shape[1])) if begin else state
        rows.append(r[t] @ (state + np.outer(bonus * k[t], v[t])))
        state = decay[t][:, None] * state + np.outer(k[t], v[t])
    return np.array(rows)


def seven(r: Array, k: Array, v: Array, kappa: Array, rate: Array, decay: Array, begins: Begins = None) -> Array:
    """S_t = S_{t-1} (diag(d_t) - kappa_t^T (a_t kappa_t)) + v_t^T k_t, o_t = S_t r_t for one head; Peng et al. 2025,
    section 4. A document begins with S = 0."""
    rows = []
    for t, begin in documents(len(k), begins):
        state = np.zeros((v.shape[1], k.shape[1])) if begin else state
        state = state @ (np.diag(decay[t]) - np.outer(kappa[t], rate[t] * kappa[t])) + np.outer(v[t], k[t])
        rows.append(state @ r[t])
    return np.array(rows)


def head_norm(o: Array, weight: Array, bias: Array, eps: float) -> Array:
    """Each head's vector of o [T,H,E] by its own mean and variance, with weight and bias [H,E]."""
    centred = o - o.mean(-1, keepdims=True)
    return weight * centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + eps) + bias

"""RWKV-4's channel mixing: a feed-forward whose state is the previous token's input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .activations import sigmoid, squared_relu

Array = NDArray[Any]


def channel_mixing(
    x: Array,
    mu_k: Array,
    mu_r: Array,
    w_k: Array,
    w_v: Array,
    w_r: Array,
    *,
    last: Array | None = None,
    begins: Sequence[bool] | None = None,
) -> tuple[Array, Array]:
    """o_t = sigmoid(r_t) W_v max(k_t, 0)^2 and the last input; Peng et al. 2023 (RWKV), section 3.1.

    k_t = W_k (mu_k x_t + (1 - mu_k) x_{t-1}), r_t = W_r (mu_r x_t + (1 - mu_r) x_{t-1}). x[T, D], mu_*[D], w_k[F, D],
    w_v[D, F], w_r[D, D]; no biases. x_{-1} is `last`[D] or zero; where begins[t] is true, x_{t-1} reads zero.
    Compared with transformers' RwkvFeedForward (stored numbers).
    """
    previous = np.zeros(x.shape[1]) if last is None else last
    out = np.zeros((len(x), w_v.shape[0]))
    for t in range(len(x)):
        if begins is not None and begins[t]:
            previous = np.zeros(x.shape[1])
        k = w_k @ (mu_k * x[t] + (1.0 - mu_k) * previous)
        r = w_r @ (mu_r * x[t] + (1.0 - mu_r) * previous)
        out[t] = sigmoid(r) * (w_v @ squared_relu(k))
        previous = x[t]
    return out, previous

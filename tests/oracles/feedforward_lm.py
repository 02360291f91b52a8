"""Bengio's feed-forward language model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def feedforward_lm(
    tokens: Array, order: int, c: Array, start: Array, h: Array, d: Array, u: Array, b: Array, w: Array | None = None
) -> Array:
    """y = b + W x + U tanh(d + H x) after each token; Bengio et al. 2003, section 2, equation 1.

    x = (C(t-n+2), ..., C(t)), oldest first (the paper writes the newest first, which permutes columns of H and W);
    before the first token stands `start`. tokens[T], c[V, m], start[m], h[F, (n-1) m], d[F], u[V, F], b[V],
    w[V, (n-1) m] or None for no direct connections. Compared with torch.nn.Conv1d in tests/models.
    """
    out = np.zeros((len(tokens), len(b)))
    for t in range(len(tokens)):
        features = [c[tokens[s]] if s >= 0 else start for s in range(t - order + 2, t + 1)]
        x = np.concatenate(features)
        out[t] = b + u @ np.tanh(d + h @ x)
        if w is not None:
            out[t] += w @ x
    return out

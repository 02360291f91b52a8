"""The selective state-space model and the block of Mamba around it, token by token and channel by channel.

Gu & Dao 2023 (arXiv:2312.00752), algorithm 2, with B discretised by Euler's rule as in the released code; the block is
that of figure 3. Compared with transformers 5.23, whose tiny models tests/against_transformers runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def selective_scan(u: Array, dt: Array, a: Array, b: Array, c: Array, before: Array | None = None,
                   begins: Sequence[bool] | None = None) -> tuple[Array, Array]:
    """y[T,D] and the last state [D,N]; u and dt [T,D], a[D,N], b and c[T,N]. A document that begins clears the
    state."""
    channels, size = a.shape
    h = np.zeros((channels, size)) if before is None else before.copy()
    y = np.zeros_like(u)
    for t in range(len(u)):
        if begins is not None and begins[t]:
            h = np.zeros_like(h)
        new = np.zeros_like(h)
        for d in range(channels):
            for n in range(size):
                new[d, n] = np.exp(dt[t, d] * a[d, n]) * h[d, n] + dt[t, d] * b[t, n] * u[t, d]
            y[t, d] = sum(c[t, n] * new[d, n] for n in range(size))
        h = new
    return y, h


class Weights(NamedTuple):
    """Of a block: its maps [out,in], the convolution's taps [C,K], the steps' bias, log(-A) [C,N] and D [C]."""

    into: Array
    taps: Array
    select: Array
    step: Array
    dt_bias: Array
    a_log: Array
    skip: Array
    out: Array


def silu(x: Array) -> Array:
    """x / (1 + exp(-x))."""
    return np.asarray(x / (1 + np.exp(-x)))


def block(x: Array, w: Weights, *, conv_bias: Array | None = None, begins: Sequence[bool] | None = None,
          norm_eps: float | None = None) -> Array:
    """The block's output for x[T,D]; ``norm_eps``: what r, B and C are normalised with, by their root mean square."""
    channels, taps = w.taps.shape
    both = x @ w.into.T
    entering, gate = both[:, :channels], both[:, channels:]
    u = np.zeros_like(entering)
    for t in range(len(x)):
        first = max(s for s in range(t + 1) if s == 0 or (begins is not None and begins[s]))
        for k in range(taps):
            at = t - (taps - 1 - k)
            if at >= first:
                u[t] += w.taps[:, k] * entering[at]
    u = silu(u if conv_bias is None else u + conv_bias)
    rank, size = w.step.shape[1], w.a_log.shape[1]
    parts = np.split(u @ w.select.T, [rank, rank + size], axis=1)
    if norm_eps is not None:
        parts = [p / np.sqrt((p**2).mean(axis=1, keepdims=True) + norm_eps) for p in parts]
    r, b, c = parts
    dt = np.log1p(np.exp(r @ w.step.T + w.dt_bias))
    y, _ = selective_scan(u, dt, -np.exp(w.a_log), b, c, None, begins)
    return (y + w.skip * u) * silu(gate) @ w.out.T

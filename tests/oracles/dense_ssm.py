"""State-space models with dense matrices, channel by channel: linear SSMs, and S4's diagonal plus rank one as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import ssm

Array = NDArray[Any]


def channels(u: Array, systems: Sequence[tuple[Array, Array, Array]], skip: Array, *, states: Array | None = None,
             begins: Sequence[bool] | None = None) -> tuple[Array, Array]:
    """x_t = A x_{t-1} + B u_t, y_t = C x_t + D u_t for each channel of u[T, D] alone, and the last states [D, N].

    systems: discrete a[N, N], b[N], c[N] of each channel. begins[t] true sets the states to zero before t.
    """
    y, last = np.zeros(u.shape), []
    for d, (a, b, c) in enumerate(systems):
        x = np.zeros(len(a), dtype=a.dtype) if states is None else states[d].astype(a.dtype)
        for t in range(len(u)):
            if begins is not None and begins[t]:
                x = np.zeros_like(x)
            x = a @ x + b * u[t, d]
            y[t, d] = (c @ x).real + skip[d] * u[t, d]
        last.append(x)
    return y, np.array(last)


def linear(a: Array, b: Array, c: Array, dt: Array, method: str) -> list[tuple[Array, Array, Array]]:
    """The discrete systems of continuous a[D, N, N], b[D, N], c[D, N]."""
    found = []
    for d in range(len(dt)):
        a_d, b_d = ssm.discretise_dense(a[d], b[d][:, None], dt[d], method)
        found.append((a_d, b_d[:, 0], c[d]))
    return found


def dplr(modes: Array, p: Array, b: Array, c: Array, dt: Array) -> list[tuple[Array, Array, Array]]:
    """The discrete systems of A = diag(lambda, conj lambda) - (p, conj p) (p, conj p)*; Gu et al. 2022 (S4), section 3.

    modes, p, b, c [D, N/2] complex, one of each conjugate pair; the systems are complex ones of size N, whose second
    half is the conjugate of the first. Compared with the annotated S4's discrete_DPLR and kernel_DPLR.
    """
    found = []
    for d in range(len(dt)):
        whole = [np.concatenate([each[d], each[d].conj()]) for each in (modes, p, b, c)]
        a = np.diag(whole[0]) - np.outer(whole[1], whole[1].conj())
        a_d, b_d = ssm.discretise_dense(a, whole[2][:, None], dt[d], "bilinear")
        found.append((a_d, b_d[:, 0], whole[3]))
    return found


def kernels(systems: Sequence[tuple[Array, Array, Array]], length: int) -> Array:
    """K[d, l] = C A^l B, powers by repeated multiplication."""
    found = np.zeros((len(systems), length))
    for d, (a, b, c) in enumerate(systems):
        x = b
        for step in range(length):
            found[d, step] = (c @ x).real
            x = a @ x
    return found

"""Linear state-space models: dense ones, and diagonal complex ones (S4D), step by step and as convolutions.

Continuous: x'(t) = A x(t) + B u(t), y(t) = C x(t) + D u(t). Discrete: x_k = A' x_{k-1} + B' u_k, y_k = C x_k + D u_k:
the input at k enters the state at k (as in S4), so y_0 = C B' u_0 + D u_0.
"""

from __future__ import annotations

import cmath
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def matrix_exponential(matrix: Array) -> Array:
    """exp(M) by its power series on M / 2^s, squared s times. Compared with scipy.linalg.expm."""
    squarings = max(0, int(np.ceil(np.log2(max(np.abs(matrix).sum(axis=1).max(), 1e-300)))) + 4)
    small = matrix / 2.0**squarings
    total = term = np.eye(len(matrix), dtype=matrix.dtype)
    for n in range(1, 20):
        term = term @ small / n
        total = total + term
    for _ in range(squarings):
        total = total @ total
    return total


def discretise_dense(a: Array, b: Array, dt: float, method: str = "bilinear") -> tuple[Array, Array]:
    """(A', B') for a[N, N], b[N, M] and step dt; Gu et al. 2022 (S4), eq. 3; Gu et al. 2022b (S4D), section 3.1.

    "bilinear": (I - dt/2 A)^-1 (I + dt/2 A), (I - dt/2 A)^-1 dt B. "zoh", zero-order hold: exp(dt A),
    A^-1 (exp(dt A) - I) B, read off exp of dt [[A, B], [0, 0]] so that A may be singular. Compared with
    scipy.signal.cont2discrete.
    """
    n, m = b.shape
    if method == "bilinear":
        left = np.linalg.inv(np.eye(n) - dt / 2 * a)
        return left @ (np.eye(n) + dt / 2 * a), left @ (dt * b)
    block = np.zeros((n + m, n + m), dtype=np.result_type(a, b))
    block[:n, :n], block[:n, n:] = dt * a, dt * b
    exponential = matrix_exponential(block)
    return exponential[:n, :n], exponential[:n, n:]


def linear_recurrence(u: Array, a: Array, b: Array, c: Array, d: Array, x0: Array | None = None) -> tuple[Array, Array]:
    """x_k = A' x_{k-1} + B' u_k, y_k = C x_k + D u_k and the last state; u[L, M], a[N, N], b[N, M], c[P, N], d[P, M].

    a and b are discrete already. Compared with scipy.signal.dlsim (whose input enters one step later: C A', C B' + D).
    """
    x = np.zeros(len(a)) if x0 is None else x0
    y = []
    for u_k in u:
        x = a @ x + b @ u_k
        y.append(c @ x + d @ u_k)
    return np.array(y), x


def linear_convolution(u: Array, a: Array, b: Array, c: Array, d: Array) -> Array:
    """y_k = sum_l K_l u_{k-l} + D u_k with K_l = C A'^l B', from state zero; Gu et al. 2022 (S4), eq. 4 and 5."""
    y = np.zeros((len(u), len(c)))
    kernel = [c @ np.linalg.matrix_power(a, power) @ b for power in range(len(u))]
    for k in range(len(u)):
        y[k] = d @ u[k] + sum(kernel[lag] @ u[k - lag] for lag in range(k + 1))
    return y


def s4d_discretise(a: complex, b: complex, dt: float, method: str = "zoh") -> tuple[complex, complex]:
    """(a', b') of one scalar mode: "zoh" exp(dt a), (exp(dt a) - 1) / a b; "bilinear" (1 + dt a/2) / (1 - dt a/2),
    dt b / (1 - dt a/2); Gu et al. 2022b (S4D), section 3.1. Compared with scipy.signal.cont2discrete.
    """
    if method == "bilinear":
        return (1 + dt * a / 2) / (1 - dt * a / 2), dt * b / (1 - dt * a / 2)
    discrete = cmath.exp(dt * a)
    return discrete, (discrete - 1) / a * b


def s4d_recurrence(
    u: Array,
    a: Array,
    b: Array,
    c: Array,
    dt: Array,
    skip: Array | None = None,
    *,
    method: str = "zoh",
    state: Array | None = None,
    begins: Sequence[bool] | None = None,
) -> tuple[Array, Array]:
    """y_t = 2 Re(sum_n c_n x_n) + D u_t, x_n <- a'_n x_n + b'_n u_t, for D channels alone; Gu et al. 2022b, section 3.

    u[T, D] real; a, b, c[D, N/2] complex, one of each conjugate pair of a real system of size N; dt[D] > 0;
    skip[D]. state[D, N/2] complex, given back after the last step; begins[t] true sets it to zero before t.
    Compared with scipy.signal.dlsim on the equal real system of size N.
    """
    n_channels, n_modes = a.shape
    x = np.zeros((n_channels, n_modes), dtype=np.complex128) if state is None else state.astype(np.complex128)
    y = np.zeros((len(u), n_channels))
    for t in range(len(u)):
        if begins is not None and begins[t]:
            x = np.zeros((n_channels, n_modes), dtype=np.complex128)
        x = x.copy()
        for d in range(n_channels):
            for n in range(n_modes):
                a_n, b_n = s4d_discretise(a[d, n], b[d, n], dt[d], method)
                x[d, n] = a_n * x[d, n] + b_n * u[t, d]
            y[t, d] = 2 * sum(c[d, n] * x[d, n] for n in range(n_modes)).real
            y[t, d] += 0.0 if skip is None else skip[d] * u[t, d]
    return y, x


def s4d_kernel(a: Array, b: Array, c: Array, dt: Array, length: int, method: str = "zoh") -> Array:
    """K[d, l] = 2 Re(sum_n c_n a'_n^l b'_n), powers by repeated multiplication; S4D, section 3.2.

    Compared with the authors' S4DKernel.forward, transcribed and run in complex128 (stored numbers).
    """
    kernel = np.zeros((len(a), length))
    for d in range(a.shape[0]):
        for n in range(a.shape[1]):
            a_n, b_n = s4d_discretise(a[d, n], b[d, n], dt[d], method)
            power = 1.0 + 0.0j
            for step in range(length):
                kernel[d, step] += 2 * (c[d, n] * power * b_n).real
                power = power * a_n
    return kernel


def s4d_convolution(
    u: Array, a: Array, b: Array, c: Array, dt: Array, skip: Array | None = None, *, method: str = "zoh"
) -> Array:
    """y_t = sum_l K_l u_{t-l} + D u_t by a double loop, from state zero. Compared with numpy.convolve."""
    kernel = s4d_kernel(a, b, c, dt, len(u), method)
    y = np.zeros(u.shape)
    for t in range(len(u)):
        y[t] = sum(kernel[:, lag] * u[t - lag] for lag in range(t + 1))
        y[t] += 0.0 if skip is None else skip * u[t]
    return y


def s4d_lin(d_state: int) -> Array:
    """a_n = -1/2 + j pi n, n = 0 .. N/2 - 1, b_n = 1; Gu et al. 2022b, section 4 (S4D-Lin)."""
    return np.array([-0.5 + 1j * np.pi * n for n in range(d_state // 2)])


def s4d_inv(d_state: int) -> Array:
    """a_n = -1/2 + j (N/pi) (N / (2n + 1) - 1), n = 0 .. N/2 - 1, b_n = 1; Gu et al. 2022b, section 4 (S4D-Inv)."""
    return np.array([-0.5 + 1j * d_state / np.pi * (d_state / (2 * n + 1) - 1) for n in range(d_state // 2)])


def hippo_legs(d_state: int) -> tuple[Array, Array, Array]:
    """A[N, N], B[N], P[N] of HiPPO-LegS, A = (normal matrix) - P P^T; Gu et al. 2020 (HiPPO); S4, section 3.

    A_nk = -sqrt((2n+1)(2k+1)) below the diagonal, -(n+1) on it, 0 above; B_n = sqrt(2n+1); P_n = sqrt(n + 1/2).
    """
    a = np.zeros((d_state, d_state))
    for n in range(d_state):
        for k in range(d_state):
            if n > k:
                a[n, k] = -np.sqrt((2 * n + 1) * (2 * k + 1))
            elif n == k:
                a[n, k] = -(n + 1)
    b = np.array([np.sqrt(2 * n + 1) for n in range(d_state)])
    p = np.array([np.sqrt(n + 0.5) for n in range(d_state)])
    return a, b, p


def s4d_legs(d_state: int) -> tuple[Array, Array]:
    """(a, b)[N/2]: eigenvalues with positive imaginary part, ascending, of A + P P^T, and |V* B|.

    Gu et al. 2022b (S4D), section 4 (S4D-LegS).

    Every eigenvalue has real part -1/2. V has orthonormal columns, each fixed up to a phase only, so b is turned to
    be real and positive here (c absorbs the phase). Compared with scipy.linalg.eigvals and, for N = 2,
    by hand.
    """
    a, b, p = hippo_legs(d_state)
    normal = a + np.outer(p, p)
    skew = normal + 0.5 * np.eye(d_state)
    imaginary, vectors = np.linalg.eigh(skew * -1j)
    positive = [n for n in range(d_state) if imaginary[n] > 0]
    projected = vectors.conj().T @ b
    return np.array([-0.5 + 1j * imaginary[n] for n in positive]), np.array([abs(projected[n]) for n in positive])

"""Rotary position embedding (Su et al. 2021) in each form the lectures write it in.

y[T, d] are queries or keys of one head, positions[T] any real numbers, theta[d/2] angular frequencies in radians per
token. Su et al. turn by m theta; a lecture writes 2 pi theta m, which is the same with theta in turns per token.
Interleaved pairs are (y_0, y_1), (y_2, y_3), ...; half-split pairs are (y_0, y_{d/2}), (y_1, y_{d/2+1}), ...
Compared with transformers' apply_rotary_pos_emb of Llama (half-split) and GPT-J (interleaved), stored numbers, and
with each other.
"""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def complex_pairs(y: Array) -> Array:
    """z_i = y_{2i} + j y_{2i+1}: interleaved pairs as complex numbers, [T, d/2]."""
    return np.array([[complex(row[2 * i], row[2 * i + 1]) for i in range(len(row) // 2)] for row in y])


def real_pairs(z: Array) -> Array:
    """The inverse of `complex_pairs`, [T, d]."""
    return np.array([[part for value in row for part in (value.real, value.imag)] for row in z])


def rope_complex(z: Array, positions: Array, theta: Array) -> Array:
    """f(z, m) = z e^(j m theta), complex [T, d/2]; Su et al. 2021, eq. 12."""
    out = np.zeros(z.shape, dtype=np.complex128)
    for t, m in enumerate(positions):
        for i, frequency in enumerate(theta):
            out[t, i] = z[t, i] * cmath.exp(1j * m * frequency)
    return out


def rope_conjugate_pairs(z: Array, positions: Array, theta: Array) -> Array:
    """(z e^(j m theta), conj(z) e^(-j m theta)) / sqrt 2, complex [T, d]; lecture 000, "Final Solution".

    The complex inner product sum_l q_l conj(k_l) of two such vectors is real and equals the real inner product of the
    rotated vectors.
    """
    turned = rope_complex(z, positions, theta)
    return np.concatenate([turned, np.conj(turned)], axis=1) / math.sqrt(2.0)


def scores_conjugate_pairs(q: Array, k: Array, q_positions: Array, k_positions: Array, theta: Array) -> Array:
    """Unscaled scores[T, S] as complex inner products of conjugate pairs (complex128, imaginary part 0).

    q[T, d], k[S, d] real with interleaved pairs.
    """
    turned_q = rope_conjugate_pairs(complex_pairs(q), q_positions, theta)
    turned_k = rope_conjugate_pairs(complex_pairs(k), k_positions, theta)
    scores = np.zeros((len(q), len(k)), dtype=np.complex128)
    for t, q_m in enumerate(turned_q):
        for s, k_n in enumerate(turned_k):
            scores[t, s] = sum(a * b.conjugate() for a, b in zip(q_m, k_n, strict=True))
    return scores


def scores_real_part(q: Array, k: Array, q_positions: Array, k_positions: Array, theta: Array) -> Array:
    """s_mn = Re[ sum_i q_i conj(k_i) e^(j (m - n) theta_i) ], unscaled, [T, S]; Su et al. 2021, eq. 12 (function g).

    q[T, d], k[S, d] real with interleaved pairs: nothing is rotated, only the distance m - n enters.
    """
    zq, zk = complex_pairs(q), complex_pairs(k)
    scores = np.zeros((len(q), len(k)))
    for t, m in enumerate(q_positions):
        for s, n in enumerate(k_positions):
            products = [zq[t, i] * zk[s, i].conjugate() * cmath.exp(1j * (m - n) * theta[i]) for i in range(len(theta))]
            scores[t, s] = sum(products).real
    return scores


def rotation_matrix(m: float, theta: Array) -> Array:
    """R_m, block-diagonal with blocks [[cos m theta_i, -sin m theta_i], [sin m theta_i, cos m theta_i]].

    Su et al. 2021, eq. 15; interleaved pairs.
    """
    matrix = np.zeros((2 * len(theta), 2 * len(theta)))
    for i, frequency in enumerate(theta):
        cos, sin = math.cos(m * frequency), math.sin(m * frequency)
        matrix[2 * i, 2 * i], matrix[2 * i, 2 * i + 1] = cos, -sin
        matrix[2 * i + 1, 2 * i], matrix[2 * i + 1, 2 * i + 1] = sin, cos
    return matrix


def rope_matrix(y: Array, positions: Array, theta: Array) -> Array:
    """R_m y_m row by row, interleaved pairs; Su et al. 2021, eq. 14."""
    return np.array([rotation_matrix(m, theta) @ row for m, row in zip(positions, y, strict=True)])


def rope_interleaved(y: Array, positions: Array, theta: Array) -> Array:
    """y cos(m theta) + (-y_1, y_0, -y_3, y_2, ...) sin(m theta), element by element; Su et al. 2021, section 3.4.2."""
    out = np.zeros(y.shape)
    for t, m in enumerate(positions):
        for i, frequency in enumerate(theta):
            cos, sin = math.cos(m * frequency), math.sin(m * frequency)
            out[t, 2 * i] = y[t, 2 * i] * cos - y[t, 2 * i + 1] * sin
            out[t, 2 * i + 1] = y[t, 2 * i + 1] * cos + y[t, 2 * i] * sin
    return out


def rope_half_split(y: Array, positions: Array, theta: Array) -> Array:
    """[y_left | y_right] cos(C) + [-y_right | y_left] sin(C), C = [m theta | m theta].

    Lecture 003, "Matrix Version of RoPE"; GPT-NeoX, Llama as transformers stores it.
    """
    half = len(theta)
    out = np.zeros(y.shape)
    for t, m in enumerate(positions):
        for i, frequency in enumerate(theta):
            cos, sin = math.cos(m * frequency), math.sin(m * frequency)
            out[t, i] = y[t, i] * cos - y[t, half + i] * sin
            out[t, half + i] = y[t, half + i] * cos + y[t, i] * sin
    return out


def rope_partial(y: Array, positions: Array, theta: Array, layout: str = "half_split") -> Array:
    """Turns the first 2 len(theta) features and leaves the others; pairs are formed inside the turned part."""
    turned = 2 * len(theta)
    rotate = {"half_split": rope_half_split, "interleaved": rope_interleaved}[layout]
    return np.concatenate([rotate(y[:, :turned], positions, theta), y[:, turned:]], axis=1)


def half_split_order(d_rotary: int) -> list[int]:
    """p with y_half_split = y_interleaved[p]: even features first, then odd ones.

    The rows of a head's W_q and W_k (and biases) go the same way, W_half_split = W_interleaved[p]: the permutation
    between Meta's Llama files and transformers'.
    """
    return list(range(0, d_rotary, 2)) + list(range(1, d_rotary, 2))


def interleaved_order(d_rotary: int) -> list[int]:
    """The inverse permutation: y_interleaved = y_half_split[p]."""
    return [i // 2 + (d_rotary // 2 if i % 2 else 0) for i in range(d_rotary)]

"""Attention with linear biases (Press et al. 2022): slopes and the full additive mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def slopes_press(n_heads: int) -> Array:
    """m_h = 2^(-8h/H), h = 1 .. H, for H a power of two; Press et al. 2022, section 3.

    Otherwise (released code, BLOOM, Falcon) the P slopes of the power of two P below H, then the first, third, ...
    of the 2P slopes until there are H. Compared with transformers' build_alibi_tensor of BLOOM (stored numbers).
    """
    below = 2 ** (n_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * h / below) for h in range(1, below + 1)]
    doubled = [2.0 ** (-8.0 * h / (2 * below)) for h in range(1, 2 * below + 1)]
    return np.array(slopes + doubled[0::2][: n_heads - below])


def slopes_mpt(n_heads: int, bias_max: float = 8.0) -> Array:
    """MPT's rule: the slopes of the power of two above H, second, fourth, ... first, then first, third, ...; H of them.

    For H a power of two the same as Press's. Compared with transformers' build_mpt_alibi_tensor (stored numbers).
    """
    above = 2 ** (n_heads - 1).bit_length()
    slopes = [2.0 ** (-bias_max * h / above) for h in range(1, above + 1)]
    return np.array(slopes if above == n_heads else (slopes[1::2] + slopes[0::2])[:n_heads])


def bias(slopes: Array, query_positions: Sequence[float], key_positions: Sequence[float]) -> Array:
    """-m_h |i - j|, [H, T, S], added to the scaled scores and itself unscaled; no mask in it."""
    return np.array([[[-m * abs(i - j) for j in key_positions] for i in query_positions] for m in slopes])


def causal_mask(slopes: Array, query_positions: Sequence[float], key_positions: Sequence[float]) -> Array:
    """The paper's full H x T x S additive mask: -m_h (i - j) where j <= i, -inf elsewhere; Press et al. 2022, fig. 3.

    Compared with BLOOM's m_h j up to a constant per query, which softmax removes.
    """
    return np.array(
        [[[-m * (i - j) if j <= i else -math.inf for j in key_positions] for i in query_positions] for m in slopes]
    )


def bfloat16(numbers: Array) -> Array:
    """The nearest numbers with 8 significant bits, ties to even; for numbers far from the ends of the range."""
    fraction, exponent = np.frexp(numbers)
    return np.ldexp(np.round(fraction * 256), exponent - 8)


def falcon_products(n_heads: int, positions: Sequence[float]) -> Array:
    """Slope times position [H, S], each of the three rounded to bfloat16; Falcon's released code.

    Compared with transformers' build_alibi_tensor of Falcon (stored numbers).
    """
    slopes = bfloat16(slopes_press(n_heads).astype(np.float32).astype(float))
    return bfloat16(slopes[:, None] * bfloat16(np.array(positions, dtype=float))[None])


def falcon_bias(n_heads: int, d_head: int, query_positions: Sequence[float], key_positions: Sequence[float]) -> Array:
    """-|a - b| / sqrt(E) of the products a of queries and b of keys, [H, T, S]: what Falcon's code adds to the scaled
    scores up to a constant per query, where j <= i."""
    a, b = falcon_products(n_heads, query_positions), falcon_products(n_heads, key_positions)
    return -np.abs(a[:, :, None] - b[:, None, :]) / math.sqrt(d_head)

"""Absolute codes added to (or set beside) the embeddings. Rotary, ALiBi and T5 have files of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def sinusoidal_interleaved(positions: Iterable[float], d_model: int, base: float = 10000.0) -> Array:
    """PE[p, 2i] = sin(p / base^(2i/d)), PE[p, 2i+1] = cos(p / base^(2i/d)); Vaswani et al. 2017, section 3.5.

    Angles in radians, d_model even. Compared with numbers computed by hand.
    """
    positions = list(positions)
    code = np.zeros((len(positions), d_model))
    for row, p in enumerate(positions):
        for i in range(d_model // 2):
            angle = p / base ** (2 * i / d_model)
            code[row, 2 * i] = math.sin(angle)
            code[row, 2 * i + 1] = math.cos(angle)
    return code


def sinusoidal_halves(positions: Iterable[float], d_model: int, base: float = 10000.0) -> Array:
    """The same numbers with all sines first, then all cosines: Marian, RoFormer, Transformer-XL.

    Compared with transformers' MarianSinusoidalPositionalEmbedding (stored numbers).
    """
    positions = list(positions)
    code = np.zeros((len(positions), d_model))
    for row, p in enumerate(positions):
        for i in range(d_model // 2):
            angle = p / base ** (2 * i / d_model)
            code[row, i] = math.sin(angle)
            code[row, d_model // 2 + i] = math.cos(angle)
    return code


def sinusoidal_fairseq(positions: Iterable[float], d_model: int, base: float = 10000.0) -> Array:
    """Halves, with exponent i/(d/2 - 1) in place of 2i/d: the slowest wavelength is exactly 2 pi base.

    fairseq's and tensor2tensor's form. Compared with transformers' M2M100SinusoidalPositionalEmbedding (stored
    numbers).
    """
    positions = list(positions)
    half = d_model // 2
    code = np.zeros((len(positions), d_model))
    for row, p in enumerate(positions):
        for i in range(half):
            angle = p / base ** (i / (half - 1))
            code[row, i] = math.sin(angle)
            code[row, half + i] = math.cos(angle)
    return code


def integer_code(positions: Iterable[int]) -> Array:
    """code[p] = p, [T, 1]: unbounded."""
    return np.array([[float(p)] for p in positions])


def fraction_code(length: int) -> Array:
    """code[p] = p / (N - 1), [N, 1]: the same position differs between sentences of different length N.

    A sentence of one token gets 0.
    """
    return np.array([[p / (length - 1) if length > 1 else 0.0] for p in range(length)])


def binary_code(positions: Iterable[int], n_digits: int) -> Array:
    """code[p, k] = floor(p / 2^k) mod 2, the least significant digit first, [T, n_digits]; periodic in 2^n_digits."""
    return np.array([[float((p // 2**k) % 2) for k in range(n_digits)] for p in positions])


def sine_code(positions: Iterable[float], frequency: float) -> Array:
    """code[p] = sin(frequency p), [T, 1], frequency in radians per token: one value for many positions."""
    return np.array([[math.sin(frequency * p)] for p in positions])

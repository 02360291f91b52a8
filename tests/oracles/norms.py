"""Normalisation over features (layer, RMS) and over tokens (batch)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def layernorm(x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5) -> Array:
    """y = weight (x - mean) / sqrt(var + eps) + bias over the last axis, var with divisor D; Ba et al. 2016, section 3.

    Compared with torch.nn.functional.layer_norm.
    """
    rows = x.reshape(-1, x.shape[-1])
    out = np.zeros_like(rows)
    for r, row in enumerate(rows):
        mean = sum(row) / len(row)
        variance = sum((value - mean) ** 2 for value in row) / len(row)
        out[r] = (row - mean) / math.sqrt(variance + eps)
    y = out.reshape(x.shape)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rmsnorm(x: Array, weight: Array | None = None, eps: float = 1e-6, unit_offset: bool = False) -> Array:
    """y = weight x / sqrt(mean(x^2) + eps) over the last axis; Zhang & Sennrich 2019, eq. 4.

    `unit_offset` gives Gemma's form with (1 + weight) in place of weight. Compared with
    torch.nn.functional.rms_norm; the offset form with the same function given 1 + weight.
    """
    rows = x.reshape(-1, x.shape[-1])
    out = np.zeros_like(rows)
    for r, row in enumerate(rows):
        out[r] = row / math.sqrt(sum(value * value for value in row) / len(row) + eps)
    y = out.reshape(x.shape)
    if weight is None:
        return y
    return y * (1.0 + weight) if unit_offset else y * weight


def masked_statistics(x: Array, mask: Array) -> tuple[Array, Array, int]:
    """Mean[D] and biased variance[D] of x[B, T, D] over the tokens where mask[B, T] is true, and their number."""
    tokens = [x[b, t] for b in range(x.shape[0]) for t in range(x.shape[1]) if mask[b, t]]
    mean = sum(tokens) / len(tokens)
    variance = sum((token - mean) ** 2 for token in tokens) / len(tokens)
    return np.asarray(mean), np.asarray(variance), len(tokens)


def batchnorm(
    x: Array, mask: Array | None = None, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Array:
    """Training form: y = weight (x - mean) / sqrt(var + eps) + bias, statistics per feature over all real tokens.

    x[B, T, D], mask[B, T] true for real tokens; padding is normalised with the same statistics but does not enter
    them. Ioffe & Szegedy 2015, algorithm 1. Compared with torch.nn.functional.batch_norm on the real tokens alone.
    """
    mask = np.ones(x.shape[:2], dtype=bool) if mask is None else mask
    mean, variance, _ = masked_statistics(x, mask)
    return batchnorm_evaluation(x, mean, variance, weight, bias, eps)


def batchnorm_evaluation(
    x: Array, mean: Array, variance: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Array:
    """Evaluation form with given (running) statistics mean[D] and variance[D]; Ioffe & Szegedy 2015, algorithm 2."""
    y = (x - mean) / np.sqrt(variance + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def batchnorm_running(
    x: Array, mask: Array, running_mean: Array, running_variance: Array, momentum: float = 0.1
) -> tuple[Array, Array]:
    """Running statistics after one batch: r <- (1 - momentum) r + momentum s, s the mean and the *unbiased* variance.

    torch's meaning of momentum (the weight of the new batch). Compared with torch.nn.BatchNorm1d's buffers.
    """
    mean, variance, count = masked_statistics(x, mask)
    unbiased = variance * count / (count - 1)
    return (
        (1.0 - momentum) * running_mean + momentum * mean,
        (1.0 - momentum) * running_variance + momentum * unbiased,
    )

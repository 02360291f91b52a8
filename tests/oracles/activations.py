"""Point-wise non-linearities and the softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def relu(x: Array) -> Array:
    """max(x, 0). Compared with torch.nn.functional.relu."""
    return np.where(x > 0, x, 0.0)


def squared_relu(x: Array) -> Array:
    """max(x, 0)^2; So et al. 2021 (Primer). Compared with torch's relu squared."""
    return np.where(x > 0, x * x, 0.0)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), written so that neither tail overflows. Compared with torch.sigmoid."""
    decay: Array = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + decay), decay / (1.0 + decay))


def tanh(x: Array) -> Array:
    """The hyperbolic tangent. Compared with torch.tanh."""
    return np.tanh(x)


def silu(x: Array) -> Array:
    """x sigmoid(x), also called swish; Hendrycks & Gimpel 2016; Elfwing et al. 2018. Compared with torch's silu."""
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """x Phi(x) with Phi(x) = (1 + erf(x / sqrt 2)) / 2; Hendrycks & Gimpel 2016, section 2.

    Compared with torch.nn.functional.gelu(approximate="none").
    """
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(x * 0.5 * (1.0 + erf(np.asarray(x, dtype=np.float64) / math.sqrt(2.0))))


def gelu_tanh(x: Array) -> Array:
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2; Hendrycks & Gimpel 2016, section 2 (approximation).

    This is the "gelu" of GPT-1 and GPT-2. Compared with torch.nn.functional.gelu(approximate="tanh").
    """
    return np.asarray(0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))))


def quick_gelu(x: Array) -> Array:
    """x sigmoid(1.702 x); Hendrycks & Gimpel 2016, section 2 (approximation). Compared with CLIP's quick_gelu."""
    return x * sigmoid(1.702 * x)


def clipped_gelu(x: Array) -> Array:
    """gelu(x) within [-10, 10]; Wu et al. 2020. Compared with torch's gelu and clamp."""
    return np.clip(gelu(x), -10.0, 10.0)


def mish(x: Array) -> Array:
    """x tanh(softplus(x)); Misra 2019. Compared with torch.nn.functional.mish."""
    return np.asarray(x * np.tanh(softplus(x)))


def leaky_relu(x: Array) -> Array:
    """x, and 0.01 x below 0; Maas et al. 2013. Compared with torch.nn.functional.leaky_relu."""
    return np.where(x > 0, x, 0.01 * x)


def relu6(x: Array) -> Array:
    """min(max(x, 0), 6); Howard et al. 2017. Compared with torch.nn.functional.relu6."""
    return np.clip(x, 0.0, 6.0)


def hard_swish(x: Array) -> Array:
    """x relu6(x + 3) / 6; Howard et al. 2019, section 5.2. Compared with torch.nn.functional.hardswish."""
    return np.asarray(x * relu6(x + 3.0) / 6.0)


def laplace(x: Array) -> Array:
    """(1 + erf((x - mu) / (sigma sqrt 2))) / 2 with mu = sqrt(1/2), sigma = sqrt(1 / (4 pi)); Ma et al. 2022.

    Compared with torch.erf of the same.
    """
    erf = np.vectorize(math.erf, otypes=[np.float64])
    mu, sigma = math.sqrt(0.5), math.sqrt(1.0 / (4.0 * math.pi))
    return np.asarray(0.5 * (1.0 + erf((np.asarray(x, dtype=np.float64) - mu) / (sigma * math.sqrt(2.0)))))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), without overflow. Compared with torch.nn.functional.softplus.

    torch switches to the identity above x = 20, which moves values by at most 2.1e-9.
    """
    return np.asarray(np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))))


def log_softmax(x: Array) -> Array:
    """x_i - log sum_j exp(x_j) over the last axis. Compared with torch.log_softmax."""
    largest = np.max(x, axis=-1, keepdims=True)
    shifted = x - largest
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True)))


def softmax(x: Array) -> Array:
    """exp(x_i) / sum_j exp(x_j) over the last axis; entries of -inf get exactly 0. Compared with torch.softmax."""
    weights = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return np.asarray(weights / np.sum(weights, axis=-1, keepdims=True))


def logsumexp(x: Array) -> Array:
    """log sum_j exp(x_j) over the last axis. Compared with torch.logsumexp."""
    largest = np.max(x, axis=-1, keepdims=True)
    return np.asarray(largest[..., 0] + np.log(np.sum(np.exp(x - largest), axis=-1)))

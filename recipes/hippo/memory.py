"""HiPPO-LegS as a memory: what a state of N numbers says of the whole input, and of the input some steps ago.

    x'(t) = (A x(t) + B u(t)) / t        the input so far, by Legendre polynomials over [0, t]
    x'(t) = A x(t) + B u(t)              S4's form: the recent past, by Legendre polynomials in exp(-age)

A and B are those of `weft.ops.hippo.hippo_legs` (Gu et al. 2020, section 3.3 and theorem 2; Gu et al. 2023, section 3).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.polynomial import legendre
from numpy.typing import NDArray
from torch import Tensor

from weft.mixers.linear_ssm import random_matrices
from weft.ops.dense_ssm import DenseSystem, discretise_dense
from weft.ops.hippo import hippo_legs

Array = NDArray[np.float64]
NOISE = 1e-6
"""Of a state that is read, relative to the mean square of its numbers."""


def signal(steps: int, seed: int = 0) -> Array:
    """A sum of twelve sines of random phases, up to six periods of the whole, with mean square about 1."""
    random = np.random.default_rng(seed)
    frequencies, phases = random.uniform(0.5, 6.0, 12), random.uniform(0, 2 * np.pi, 12)
    at = (np.arange(steps) + 0.5) / steps
    return np.asarray(np.sin(2 * np.pi * frequencies * at[:, None] + phases).sum(1) / np.sqrt(6))


def remembered(u: Array, size: int) -> Array:
    """The state after u by the first equation, each step bilinear with t the number of the step."""
    a, b, _ = (each.numpy() for each in hippo_legs(size))
    one, x = np.eye(size), np.zeros(size)
    for t, now in enumerate(u, start=1):
        x = np.linalg.solve(one - a / (2 * t), x + a @ x / (2 * t) + b * (now / t))
    return np.asarray(x)


def reconstructed(x: Array, steps: int) -> Array:
    """The input that a state stands for: sum over n of x_n sqrt(2n+1) P_n(2 s/t - 1)."""
    weights = x * np.sqrt(2 * np.arange(len(x)) + 1)
    return np.asarray(legendre.legval(2 * (np.arange(steps) + 0.5) / steps - 1, weights))


def relative_error(found: Array, wanted: Array) -> float:
    """Root mean square of the difference over that of what is wanted."""
    return float(np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted ** 2)))


def systems(kind: str, size: int, steps: list[float], seed: int) -> DenseSystem:
    """HiPPO-LegS or a random matrix in the second equation, once for each length of a step."""
    torch.manual_seed(seed)
    if kind == "legs":
        a, b, _ = hippo_legs(size)
    else:
        a, b = random_matrices(1, size)[0], torch.randn(size, dtype=torch.float64)
    count = len(steps)
    dt = torch.tensor(steps, dtype=torch.float64)
    return discretise_dense(a.repeat(count, 1, 1), b.repeat(count, 1), b.repeat(count, 1), dt, "bilinear")


def lost(system: DenseSystem, horizon: int, correlation: float) -> Tensor:
    """[H, horizon], the share of the input's variance, by age, that the best linear map from the state does not say.

    The input is a random process with correlations exp(-distance/correlation); the state has an independent relative
    error (`NOISE`). With M the map from inputs, latest first, to the state and S their covariance, the share is the
    diagonal of S - S M^T (M S M^T + noise)^-1 M S.
    """
    column, columns = system.b, []
    for _ in range(4 * horizon):
        columns.append(column)
        column = torch.einsum("hij,hj->hi", system.a, column)
    to_state = torch.stack(columns, -1)  # [H, N, 4 horizon]
    age = torch.arange(to_state.shape[-1], dtype=torch.float64)
    covariance = torch.exp(-(age[:, None] - age).abs() / correlation)
    both = to_state @ covariance
    inner = both @ to_state.mT
    noise = inner.diagonal(dim1=-2, dim2=-1).mean(-1) * NOISE
    inner = inner + noise[:, None, None] * torch.eye(inner.shape[-1], dtype=torch.float64)
    known = (both * torch.linalg.solve(inner, both)).sum(-2)
    return (1 - known)[:, :horizon]

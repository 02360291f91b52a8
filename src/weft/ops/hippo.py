"""Initial state matrices of diagonal state-space models."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

Initialisation = Literal["lin", "inv", "legs"]


def hippo_legs(d_state: int) -> tuple[Float64[Tensor, "N N"], Float64[Tensor, " N"], Float64[Tensor, " N"]]:
    """A, B, P of HiPPO-LegS: A_nk = -sqrt((2n+1)(2k+1)) below the diagonal, -(n+1) on it; B_n = sqrt(2n+1);
    P_n = sqrt(n + 1/2), and A + P P^T is normal; Gu et al. 2020, eq. 3; Gu et al. 2022, theorem 1."""
    root = torch.sqrt(2 * torch.arange(d_state, dtype=torch.float64) + 1)
    lower = torch.tril(torch.outer(root, root), diagonal=-1)
    a = -lower - torch.diag(torch.arange(d_state, dtype=torch.float64) + 1)
    return a, root, root / math.sqrt(2)


def diagonal_modes(init: Initialisation, d_state: int) -> tuple[Float64[Tensor, "M 2"], Float64[Tensor, "M 2"]]:
    """a and b of N/2 complex modes, as pairs of real numbers; every a has real part -1/2.

    "lin": a_n = -1/2 + i pi n, b = 1 (Gu et al. 2022b, eq. 9). "inv": a_n = -1/2 + i (N/pi) (N/(2n+1) - 1), b = 1
    (eq. 8). "legs": the eigenvalues of HiPPO-LegS without its low-rank part, one of each conjugate pair, ascending,
    and |V* B|: the phase of an eigenvector is arbitrary and goes into c (section 3.3).
    """
    n = torch.arange(d_state // 2, dtype=torch.float64)
    b = torch.ones_like(n)
    if init == "lin":
        frequency = math.pi * n
    elif init == "inv":
        frequency = d_state / math.pi * (d_state / (2 * n + 1) - 1)
    else:
        frequency, b = _legs(d_state)
    return torch.stack([torch.full_like(n, -0.5), frequency], dim=-1), torch.stack([b, torch.zeros_like(n)], dim=-1)


def _legs(d_state: int) -> tuple[Tensor, Tensor]:
    a, b, p = hippo_legs(d_state)
    skew = a + torch.outer(p, p) + torch.eye(d_state, dtype=torch.float64) / 2
    frequency, vectors = torch.linalg.eigh(-1j * skew)
    upper = frequency[d_state // 2:]
    return upper, (vectors.conj().t() @ b.to(vectors.dtype)).abs()[d_state // 2:]

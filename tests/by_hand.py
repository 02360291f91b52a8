"""Compositions of the NumPy oracles that several tests compare with, and the comparison itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from oracles import attention as oracle
from oracles.finite_difference import gradient_errors

Array = np.ndarray[Any, Any]


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Every parameter at random, so that none is at a value such as 0 or 1 that hides its use."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * 0.4 + (1.0 if parameter.dim() == 1 else 0.0))


def require_agreement(y: Tensor, arguments: Sequence[Tensor], reference: Callable[..., Array]) -> None:
    """Values to 1e-12, and gradients of a random projection to 1e-7 by finite differences of the reference, whose own
    rounding is about 1e-12 / 1e-4."""
    numbers = [argument.detach().numpy() for argument in arguments]
    wanted = reference(*numbers)
    np.testing.assert_allclose(y.detach().numpy(), wanted, rtol=1e-12, atol=1e-13)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    gradients = torch.autograd.grad((y * weight).sum(), list(arguments))
    errors = gradient_errors(reference, numbers, [g.numpy() for g in gradients], np.random.default_rng(0),
                             cotangent=weight.numpy(), n_directions=2)
    assert max(errors) < 1e-7, errors


def fused_attention(n_heads: int, n_kv_heads: int, d_head: int, **stages: Any) -> Callable[..., Array]:
    """The oracle as a function of x [T,D], the fused projection [(H+K)E + KF, D], the output's weight, and the biases
    of both where there are any; ``stages`` are the oracle's own."""
    cuts = np.cumsum([n_heads * d_head, n_kv_heads * d_head])

    def run(x: Array, qkv: Array, out: Array, qkv_bias: Array | None = None, out_bias: Array | None = None) -> Array:
        q, k, v = np.split(qkv, cuts)
        b_q, b_k, b_v = (None, None, None) if qkv_bias is None else np.split(qkv_bias, cuts)
        return oracle.multi_head_attention(x, q, k, v, out, n_heads, n_kv_heads, b_q=b_q, b_k=b_k, b_v=b_v,
                                           b_o=out_bias, **stages)

    return run

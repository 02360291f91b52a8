"""Compositions of the NumPy oracles that several tests compare with, and the comparison itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from oracles import attention as oracle
from oracles.finite_difference import gradient_agrees, gradient_errors
from weft.core.layer import Layer
from weft.core.span import Span

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


def require_layer(layer: Layer, reference: Callable[..., Array], parameters: Sequence[Tensor],
                  begins: Sequence[bool] | None, *, steps: int, width: int, eps: float = 1e-4) -> None:
    """The outputs for one row of random numbers are those of ``reference``, a function of the row [T,D] and of the
    parameters, to 1e-10; so are the gradients of a random projection, by finite differences of step ``eps``."""
    x = torch.randn(1, steps, width, dtype=torch.float64, requires_grad=True)
    y = layer(x, None, Span(begins=None if begins is None else torch.tensor([list(begins)]))).y
    args = [x.detach()[0].numpy(), *(p.detach().numpy() for p in parameters)]
    np.testing.assert_allclose(y[0].detach().numpy(), reference(*args), rtol=1e-10, atol=1e-12)
    cotangent = torch.randn_like(y)
    gradients = torch.autograd.grad((y * cotangent).sum(), [x, *parameters])
    found = [gradients[0][0].numpy(), *(g.numpy() for g in gradients[1:])]
    assert gradient_agrees(reference, args, found, np.random.default_rng(0), cotangent=cotangent[0].numpy(),
                           n_directions=1, eps=eps)


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

"""Products of bfloat16 matrices on processors without instructions for them. Libraries then imitate the instructions,
at a third of float32's speed; here the same numbers are multiplied in float32, and the result is rounded once."""

from __future__ import annotations

import platform
from functools import cache
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


@cache
def lacks_bfloat16() -> bool:
    """Whether this is an x86 processor that has neither AVX512-BF16 nor AMX."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return x86 and not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def widens(x: Tensor) -> bool:
    """Whether products of this tensor are faster by way of float32."""
    return x.dtype == torch.bfloat16 and x.device.type == "cpu" and lacks_bfloat16()


def wide_linear(x: Float[Tensor, "... in"], weight: Float[Tensor, "out in"],
                bias: Float[Tensor, " out"] | None = None) -> Float[Tensor, "... out"]:
    """x W^T + b, and its gradients, as products in float32, each rounded once to the dtype of what it belongs to. For
    the backward pass the narrow tensors are kept."""
    y: Tensor = _WideLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return y


@final
class _WideLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = dy.reshape(-1, weight.shape[0]).float()
        dx = (rows @ weight.float()).to(x.dtype).view(x.shape) if ctx.needs_input_grad[0] else None
        flat = x.reshape(-1, weight.shape[1])
        dweight = (rows.t() @ flat.float()).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return dx, dweight, rows.sum(0).to(weight.dtype) if ctx.biased else None

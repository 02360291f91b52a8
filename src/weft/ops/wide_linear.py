"""Products of bfloat16 matrices on processors without instructions for them. Libraries then emulate the instructions at
a third of float32's speed; here the same numbers are multiplied in float32, and each result is rounded once."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

PIECE_ENTRIES = 1 << 20
"""Numbers of a matrix that are converted at a time, 4 MiB: they stay in a cache, and do not fragment the memory."""


def _lacking() -> bool:
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return x86 and not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


_LACKING = _lacking()
"""Determined on import: `torch.compile` can trace a constant, but not the calls that determine it."""


def lacks_bfloat16() -> bool:
    """Whether this is an x86 processor that has neither AVX512-BF16 nor AMX."""
    return _LACKING


def widens(x: Tensor) -> bool:
    """Whether products of this tensor are faster by way of float32."""
    return x.dtype == torch.bfloat16 and x.device.type == "cpu" and lacks_bfloat16()


def wide_linear(x: Float[Tensor, "... in"], weight: Float[Tensor, "out in"],
                bias: Float[Tensor, " out"] | None = None) -> Float[Tensor, "... out"]:
    """x W^T + b and its gradients as products in float32 or wider, each rounded once to the dtype of the tensor that it
    belongs to. For the backward pass the narrow tensors are kept; wide ones exist for some rows at a time."""
    y: Tensor = _WideLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return y


@final
class _WideLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        wide, b = weight.to(_wide(x)), None if bias is None else bias.to(_wide(x))
        return _by_rows(x, lambda rows: F.linear(rows, wide, b), weight.shape[0], _rows(weight))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = dweight = None
        if ctx.needs_input_grad[0]:
            wide = weight.to(_wide(weight))
            dx = _by_rows(dy, lambda rows: rows @ wide, weight.shape[1], _rows(weight))
        if ctx.needs_input_grad[1]:
            total = torch.zeros_like(weight, dtype=_wide(weight))
            pieces = (t.reshape(-1, t.shape[-1]).split(_rows(weight)) for t in (dy, x))
            for d, taken in zip(*pieces, strict=True):
                total.addmm_(d.to(total.dtype).t(), taken.to(total.dtype))
            dweight = total.to(weight.dtype)
        flat = dy.reshape(-1, weight.shape[0])
        return dx, dweight, flat.sum(0, dtype=_wide(weight)).to(weight.dtype) if ctx.biased else None


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _rows(weight: Tensor) -> int:
    """Rows at a time; all under torch.compile, which would unroll the loop over pieces and take minutes."""
    return sys.maxsize if torch.compiler.is_compiling() else max(1, PIECE_ENTRIES // max(weight.shape))


def _by_rows(x: Tensor, of: Callable[[Tensor], Tensor], size: int, rows: int) -> Tensor:
    """``of`` applied to the vectors of ``x`` in float32, ``rows`` at a time; its results have ``size`` features and are
    rounded."""
    flat = x.reshape(-1, x.shape[-1])
    if flat.shape[0] <= rows:
        return of(flat.to(_wide(x))).to(x.dtype).view(*x.shape[:-1], size)
    y = x.new_empty(flat.shape[0], size)
    for start in range(0, flat.shape[0], rows):
        piece = slice(start, start + rows)
        y[piece] = of(flat[piece].to(_wide(x)))
    return y.view(*x.shape[:-1], size)

"""Products of bfloat16 matrices in float32: the same numbers, multiplied in float32, and each result rounded once.

That is faster on processors without instructions for bfloat16, which libraries then emulate at a third of float32's
speed, and on some processors that have them, as `weft.analysis.matmul` measures.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops.forms import Form
from weft.ops.linear import LinearCall, widens

FEW_ROWS = 16
"""Rows up to which an emulated product is cheaper than a wide one. The emulation takes three times as long for each
multiplication; converting the matrix to float32 writes and reads four bytes per number beside the two that are read
anyway, once for all rows. Where gradients are recorded the backward pass converts it again in any case."""
PIECE_ENTRIES = 1 << 20
"""Numbers of a matrix that are converted at a time, 4 MiB: they stay in a cache, and do not fragment the memory."""


def wide_linear(x: Float[Tensor, "... in"], weight: Float[Tensor, "out in"],
                bias: Float[Tensor, " out"] | None = None) -> Float[Tensor, "... out"]:
    """x W^T + b and its gradients as products in float32 or wider, each rounded once to the dtype of the tensor that it
    belongs to. For the backward pass the narrow tensors are kept; wide ones exist for some rows at a time."""
    y: Tensor = _WideLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return y


def wide_product(a: Float[Tensor, "M K"], b: Float[Tensor, "K N"],
                 bias: Float[Tensor, " N"] | None = None) -> Float[Tensor, "M N"]:
    """a @ b, and ``bias`` added to every row: in float32 or wider, rounded once to the dtype of ``a``. Only pieces of
    the operands exist in float32 at a time."""
    wide = _wide(a)
    (rows, shared), columns = a.shape, b.shape[1]
    added = None if bias is None else bias.to(wide)
    if shared > max(rows, columns):
        # The gradient of a matrix, a sum over all tokens: pieces of the sum are added up.
        total = torch.zeros(rows, columns, dtype=wide, device=a.device)
        size = _piece(rows, columns)
        for x, y in zip(a.split(size, 1), b.split(size), strict=True):
            total.addmm_(x.to(wide), y.to(wide))
        return (total if added is None else total.add_(added)).to(a.dtype)
    other, size = b.to(wide), _piece(shared, columns)

    def of(some: Tensor) -> Tensor:
        return some.to(wide) @ other if added is None else torch.addmm(added, some.to(wide), other)

    if rows <= size:
        return of(a).to(a.dtype)
    found = a.new_empty(rows, columns)
    for start in range(0, rows, size):
        found[start:start + size] = of(a[start:start + size])
    return found


class _WideLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        return wide_product(x.reshape(-1, x.shape[-1]), weight.t(), bias).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        d, rows = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
        dx = wide_product(d, weight).view(x.shape) if ctx.needs_input_grad[0] else None
        dweight = wide_product(d.t(), rows) if ctx.needs_input_grad[1] else None
        return dx, dweight, d.sum(0, dtype=_wide(weight)).to(weight.dtype) if ctx.biased else None


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _piece(*sizes: int) -> int:
    """Rows at a time, of a matrix with rows of these sizes; all under torch.compile, which would unroll the loop over
    pieces and take minutes."""
    return sys.maxsize if torch.compiler.is_compiling() else max(1, PIECE_ENTRIES // max(1, *sizes))


def _linear(call: LinearCall) -> Tensor:
    return wide_linear(call.x, call.weight, call.bias)


def _emulated(call: LinearCall) -> str | None:
    if not widens(call.x):
        return "the processor has instructions for the dtype"
    rows = call.x.numel() // max(1, call.x.shape[-1])
    return None if torch.is_grad_enabled() or rows > FEW_ROWS else f"at most {FEW_ROWS} rows"


FORM = Form("wide", _linear, "products in float32, each rounded once", devices=frozenset({"cpu"}),
            pays_for=frozenset({torch.bfloat16}), transformed=False, worth=_emulated)
"""Of `weft.ops.linear`."""

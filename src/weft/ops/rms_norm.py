"""Root-mean-square normalisation that keeps for its backward pass only its input and one number a vector.

    y = scale x r,   r = 1 / sqrt(mean(x^2) + eps)
    dx = r (scale dy - n mean(scale dy n)),   dscale = sum over vectors of dy n,   n = x r

`torch.nn.functional.rms_norm` is on a CPU a chain of a dozen operators that keep three copies of x.
"""

from __future__ import annotations

from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.ops.operator import again, transformed
from weft.ops.rematerialize import cheap

FEW = 8192
"""Numbers up to which the count of operations costs more than their work."""


def rms_norm(x: Float[Tensor, "... D"], scale: Float[Tensor, " D"] | None, eps: float) -> Float[Tensor, "... D"]:
    """The normalised vectors, worked out in the dtype of ``scale`` or in float32 if that is wider, and rounded once to
    that of ``x``."""
    # The compiler fuses the chain and decides itself what to keep; elsewhere than on a CPU there is a fused kernel.
    fused = torch.compiler.is_compiling() or not (torch.is_grad_enabled() or x.device.type == "cpu")
    if fused or transformed():
        return _plain(x, scale, eps)
    if not torch.is_grad_enabled():
        return _of_few(x, scale, eps) if x.numel() <= FEW else _normalised(x, scale, eps)[0]
    y: Tensor = _RMSNorm.apply(x, scale, eps)  # type: ignore[no-untyped-call]
    return cheap(y, lambda: _normalised(x, scale, eps)[0])


def _of_few(x: Tensor, scale: Tensor | None, eps: float) -> Tensor:
    """Layer normalisation of x beside -x, whose mean is 0 and whose variance is mean(x^2): one kernel in place of a
    chain, which also takes narrow floats and rounds them once."""
    size = x.shape[-1]
    twice = None if scale is None else torch.cat([scale, scale])
    return F.layer_norm(torch.cat([x, x.neg()], -1), (2 * size,), twice, None, eps).narrow(-1, 0, size)


def _normalised(x: Tensor, scale: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised vectors and r."""
    wide = _wide(x)
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    floor = torch.full((), eps, dtype=length.dtype, device=length.device)
    r = torch.addcmul(floor, length, length, value=1 / x.shape[-1]).rsqrt_()
    y = wide * r
    y = y if scale is None else y.mul_(scale) if scale.dtype == y.dtype else y * scale
    return y if y.dtype == x.dtype else y.to(x.dtype), r


def _plain(x: Tensor, scale: Tensor | None, eps: float) -> Tensor:
    y: Tensor = F.rms_norm(_wide(x), x.shape[-1:], scale, eps)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float32 else x.to(torch.promote_types(x.dtype, torch.float32))


@final
class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor | None, eps: float) -> Tensor:
        y, r = _normalised(x, scale, eps)
        ctx.eps = eps
        ctx.save_for_backward(x, scale, r)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, r = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives are wanted: the chain has them
            return (*again(_plain(x, scale, ctx.eps), [x, scale], dy), None)
        n, dy = _wide(x) * r, _wide(dy)
        product = dy * n
        along = product.mean(-1, keepdim=True) if scale is None else (product @ scale)[..., None] / x.shape[-1]
        dx = (dy.clone() if scale is None else dy * scale).addcmul_(n, along, value=-1).mul_(r)
        return dx.to(x.dtype), None if scale is None else product.flatten(0, -2).sum(0), None


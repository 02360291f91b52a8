"""Dropout whose mask costs a processor little.

    y = x m / (1 - p),   m independent, 0 with probability p and else 1

(Srivastava et al. 2014, section 4, scaled in training as in section 10.) torch draws a mask on a CPU entry by entry, in
one thread, which costs more than a small layer's products. Here 16 random bits are an entry's lot: a 64-bit number of
the same generator serves four, p is met to 2^-17, and what is kept is scaled by the share that is really met, so that
the mean of y is x.
"""

from __future__ import annotations

from typing import Any, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.layer import Part
from weft.ops.operator import transformed

LOTS = 1 << 16
RARE = 1 / 1024
"""Probabilities nearer to 0 or 1 would be met too roughly, by one part in a hundred; torch draws those."""


def dropout(x: Float[Tensor, "*shape"], p: float) -> Float[Tensor, "*shape"]:
    """``x`` with entries set to zero at random, the others scaled up. The backward pass keeps a byte an entry.

    Args:
        x: any shape.
        p: the probability of zero, 0 to 1.
    """
    if p == 0:
        return x
    # The compiler draws within the kernels that it makes; elsewhere than on a CPU there is a fused kernel.
    drawn = torch.compiler.is_compiling() or x.device.type != "cpu" or not RARE <= p <= 1 - RARE
    if drawn or transformed():  # of which `vmap` says whether rows draw alike
        return F.dropout(x, p)
    dropped = round(p * LOTS)
    y: Tensor = _Dropout.apply(x, _kept(x, dropped), LOTS / (LOTS - dropped))  # type: ignore[no-untyped-call]
    return y


def _kept(x: Tensor, dropped: int) -> Bool[Tensor, "*shape"]:
    """True for what stays: a lot is among the ``dropped`` lowest of ``LOTS`` or not."""
    count = x.numel()
    numbers = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-2**63, None)
    return (numbers.view(torch.int16)[:count] >= dropped - LOTS // 2).view(x.shape)


@final
class _Dropout(torch.autograd.Function):
    """x times the mask, times the scale; so is its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        # Three plain passes: a product of floats and booleans is ten times as slow, a selection four times.
        return kept.to(x.dtype).mul_(x).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        kept, = ctx.saved_tensors
        return _Dropout.apply(gradients[0], kept, ctx.scale), None, None  # type: ignore[no-untyped-call]


@final
class Dropout(Part):
    """`dropout` with probability ``p`` in training; as the input is otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropout_rate = p

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape."""
        return dropout(x, self.dropout_rate) if self.training else x

    def inference(self) -> nn.Module:
        return nn.Identity()

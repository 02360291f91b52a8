"""Training in bfloat16: weights are kept in float32, and the model computes with a copy of them in bfloat16."""

from __future__ import annotations

from copy import deepcopy
from typing import final

import torch
from torch import nn

from weft.core.layer import kept_dtypes
from weft.core.model import Model


def narrowed(model: Model, dtype: torch.dtype) -> Model:
    """A copy of the model in ``dtype``, except for what parts declare `exact`. No second copy in the model's own dtype
    is made on the way."""
    exact = kept_dtypes(model).exact
    weights = {id(p): nn.Parameter(p.detach().to(p.dtype if id(p) in exact else dtype, copy=True),
                                   requires_grad=p.requires_grad) for p in model.parameters()}
    return deepcopy(model, weights).to(dtype)


@final
class Precision:
    """The model that is updated and saved, and the one that computes.

    In float32 and float64 they are the same. In bfloat16, whose 8 bits of mantissa would lose an update below 1/256 of
    a weight, the computing model is a copy that is refreshed after every update; what a part declares `exact`, such as
    the modes of a state-space model, keeps its dtype in it. Linear maps multiply in float32 where the processor has no
    instructions for bfloat16 (the form ``wide`` of `weft.ops.linear`).

    Args:
        model: weights to train, in float32 or float64.
        dtype: what to compute in.
    """

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        self.model = model if dtype == torch.bfloat16 else model.to(dtype)
        self.working = narrowed(model, dtype) if dtype == torch.bfloat16 else self.model

    def collect_gradients(self) -> None:
        """Move the copy's gradients to the weights, and copy its buffers (running statistics) to the model's."""
        if self.working is self.model:
            return
        for weight, copy in zip(self.model.parameters(), self.working.parameters(), strict=True):
            weight.grad = None if copy.grad is None else copy.grad.to(weight.dtype)
            copy.grad = None
        for buffer, copied in zip(self.model.buffers(), self.working.buffers(), strict=True):
            if not torch.equal(buffer.to(copied.dtype), copied):
                buffer.copy_(copied)

    @torch.no_grad()
    def refresh(self, *, buffers: bool = False) -> None:
        """Copy the updated weights to the copy; with ``buffers``, the buffers too, after a checkpoint was loaded."""
        if self.working is self.model:
            return
        for weight, copy in zip(self.model.parameters(), self.working.parameters(), strict=True):
            copy.copy_(weight)
        if buffers:
            for buffer, copied in zip(self.model.buffers(), self.working.buffers(), strict=True):
                copied.copy_(buffer)

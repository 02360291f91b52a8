"""Weights kept in float32 while the model computes in bfloat16, all but those that parts need `exact`."""

from __future__ import annotations

from copy import deepcopy
from typing import final

import torch
from torch import nn

from weft.core.layer import kept_dtypes
from weft.core.model import Model


def narrowed(model: Model, dtype: torch.dtype) -> Model:
    """A copy in ``dtype`` but for what stays `exact`, made without one that is as wide as the model."""
    exact = kept_dtypes(model).exact
    weights = {id(p): nn.Parameter(p.detach().to(p.dtype if id(p) in exact else dtype, copy=True),
                                   requires_grad=p.requires_grad) for p in model.parameters()}
    return deepcopy(model, weights).to(dtype)


@final
class Precision:
    """The model that is updated and saved, and the one that computes.

    In float32 and float64 they are the same. In bfloat16 (8 bits of mantissa, so that an update below 1/256 of a
    weight would vanish) the computing model is a copy, refreshed after every update; what a part declares as `exact`,
    such as the modes of a state-space model, is as exact in it. Linear maps multiply in float32
    where the processor has no instructions for bfloat16 (the form ``wide`` of `weft.ops.linear`).

    Args:
        model: weights to train, in float32 or float64.
        dtype: what to compute in.
    """

    def __init__(self, model: Model, dtype: torch.dtype) -> None:
        self.model = model if dtype == torch.bfloat16 else model.to(dtype)
        self.working = narrowed(model, dtype) if dtype == torch.bfloat16 else self.model

    def collect_gradients(self) -> None:
        """Move the copy's gradients to the weights, and its buffers (running statistics) with them."""
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
        """Give the copy the weights as they are now, and the buffers too when they were set from outside."""
        if self.working is self.model:
            return
        for weight, copy in zip(self.model.parameters(), self.working.parameters(), strict=True):
            copy.copy_(weight)
        if buffers:
            for buffer, copied in zip(self.model.buffers(), self.working.buffers(), strict=True):
                copied.copy_(buffer)

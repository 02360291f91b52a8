"""What the operators of the delta rule share: what they keep for the backward pass, and what it returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.ops.operator import Kernel

Slopes = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""The gradients of q, k, v, a, b, of the logarithm of the decay (empty without one) and of the state before."""


def backward_shapes(dy: Tensor, dafter: Tensor, q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor,
                    log_decay: Tensor | None, before: Tensor) -> Slopes:
    """Of a backward operator's results."""
    decay = q.new_empty(0) if log_decay is None else q.new_empty(log_decay.shape)
    return (q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), a.new_empty(a.shape),
            b.new_empty(b.shape), decay, before.new_empty(before.shape))


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep the arguments, which is what `slopes_of` reads."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


def slopes_of(ctx: Any, dy: Tensor | None, dafter: Tensor | None, work: Kernel) -> tuple[Tensor | None, ...]:
    """The gradients of an operator's arguments, which ``work`` computes from those of both results."""
    saved = ctx.saved_tensors  # read once: what a checkpoint computes again it gives once
    v, log_decay, before = saved[2], saved[5], saved[6]
    dy = torch.zeros_like(v) if dy is None else dy
    dafter = torch.zeros_like(before) if dafter is None else dafter
    *slopes, ddecay, dbefore = work(dy, dafter, *saved)
    return *slopes, None if log_decay is None else ddecay, dbefore

"""What operators of the linear recurrence share: the shapes of their results, and their gradient.

Their backward passes read the arguments alone, and where they are differentiated themselves, chunks of PyTorch's own
operators serve (`weft.ops.linear_recurrence_chunks`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.ops.linear_recurrence_chunks import backward
from weft.ops.operator import Kernel

Slopes = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Gradients of q, k, v, the logarithm of the decay (empty where there is none) and the state before."""


def outputs_of(q: Tensor, v: Tensor) -> Tensor:
    """An empty tensor for the outputs, [B,T,max(H,K),F]."""
    return q.new_empty(*q.shape[:2], max(q.shape[2], v.shape[2]), v.shape[3])


def forward_shapes(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    """Of an operator's results."""
    return outputs_of(q, v), before.new_empty(before.shape)


def plain_backward(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None,
                   before: Tensor) -> Slopes:
    """A backward operator by PyTorch's operators."""
    dq, dk, dv, dg, dbefore = backward(grad, grad_after, q, k, v, log_decay, before)
    return (dq.contiguous(), dk.contiguous(), dv.contiguous(), dq.new_empty(0) if dg is None else dg.contiguous(),
            dbefore.contiguous())


def backward_shapes(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None,
                    before: Tensor) -> Slopes:
    """Of a backward operator's results."""
    decay = q.new_empty(0) if log_decay is None else q.new_empty(log_decay.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), decay, before.new_empty(before.shape)


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keep what `slopes_of` reads."""
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


def slopes_of(ctx: Any, grad: Tensor | None, grad_after: Tensor | None, work: Kernel) -> tuple[Tensor | None, ...]:
    """The gradients of an operator's arguments, by its backward operator ``work``."""
    saved = ctx.saved_tensors  # read once: what a checkpoint computes again it gives once
    q, _, v, log_decay, before = saved
    grad = torch.zeros_like(outputs_of(q, v)) if grad is None else grad
    grad_after = torch.zeros_like(before) if grad_after is None else grad_after
    found = (plain_backward if torch.is_grad_enabled() else work)(grad, grad_after, *saved)
    dq, dk, dv, dg, dbefore = found
    return dq, dk, dv, None if log_decay is None else dg, dbefore

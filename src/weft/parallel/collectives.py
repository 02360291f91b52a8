"""Messages of the processes that compute pieces of the same rows, as differentiable operators.

Every operator takes and returns a *thread*, a scalar through which autograd sees them as one chain. The gradient of the
loss enters the chain at its end (`Closed`), so that the backward passes of all processes communicate in exactly the
reverse order, each operator once, whether or not a process used what it received. `torch.compile` takes the operators
as they are: the thread is what keeps their order in its graphs too.

A group is given by its name, and a process by its place in it. Sending waits until the other process receives: all
processes call the operators in the same order, and messages go to the next process in one pass and to the one before
in the other, so nothing waits for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from weft.ops.operator import differentiate, operator


def group_named(name: str) -> dist.ProcessGroup:
    """The connected processes of this name."""
    from torch._C import _distributed_c10d as communication  # torch may be built without

    known: Any = name  # of a type that torch's stubs alone have
    return communication._resolve_process_group(known)


def plain(tensor: Tensor) -> Tensor:
    """A contiguous view, of real numbers, for the backends do not send complex ones."""
    whole = tensor.detach().contiguous()
    return torch.view_as_real(whole) if whole.is_complex() else whole


def differentiable(dtype: torch.dtype) -> bool:
    """Whether tensors of a dtype can have gradients."""
    return dtype.is_floating_point or dtype.is_complex


def _gathered(thread: Tensor, x: Tensor, group: str, count: int) -> tuple[Tensor, Tensor]:
    whole = x.new_empty(count, *x.shape)
    dist.all_gather([plain(part) for part in whole.unbind()], plain(x), group=group_named(group))
    return thread.clone(), whole


def _own_sum(thread: Tensor, x: Tensor, group: str, place: int) -> tuple[Tensor, Tensor]:
    # gloo has no sum that leaves each process its own part, and the sum of everything is needed once a layer.
    summed = x.contiguous().clone()
    dist.all_reduce(plain(summed), group=group_named(group))
    return thread.clone(), summed[place].clone()


def _received(thread: Tensor, size: Sequence[int], dtype: torch.dtype, group: str, source: int
              ) -> tuple[Tensor, Tensor]:
    x = thread.new_empty(size, dtype=dtype)
    dist.recv(plain(x), group=group_named(group), group_src=source)
    return thread.clone(), x


def _sent(thread: Tensor, x: Tensor, group: str, target: int) -> Tensor:
    dist.send(plain(x), group=group_named(group), group_dst=target)
    return thread.clone()


gathered = operator("pieces_gathered", _gathered, lambda thread, x, group, count: (
    torch.empty_like(thread), x.new_empty(count, *x.shape)))
"""(thread, x, group, count) -> (thread, [count, *x.shape]), the tensors of all places. The gradient of x is the sum of
those of all places."""
own_sum = operator("pieces_own_sum", _own_sum, lambda thread, x, group, place: (
    torch.empty_like(thread), x.new_empty(x.shape[1:])))
"""(thread, x, group, place) -> (thread, entry ``place`` of the sum of x over all places)."""
received = operator("pieces_received", _received, lambda thread, size, dtype, group, source: (
    torch.empty_like(thread), thread.new_empty(size, dtype=dtype)))
"""(thread, size, dtype, group, source) -> (thread, x), what the process at ``source`` sends."""
sent = operator("pieces_sent", _sent, lambda thread, x, group, target: torch.empty_like(thread))
"""(thread, x, group, target) -> thread; x goes to the process at ``target``, from which its gradient returns."""


def _save_gathered(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.group = inputs[2]


def _gathered_backward(ctx: Any, thread: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *own_sum(thread, grad, ctx.group, dist.get_rank(group_named(ctx.group))), None, None


def _save_received(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, ctx.dtype, ctx.group, ctx.source = inputs


def _received_backward(ctx: Any, thread: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
    if differentiable(ctx.dtype):
        thread = sent(thread, grad, ctx.group, ctx.source)
    return thread, None, None, None, None


def _save_sent(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, x, ctx.group, ctx.target = inputs
    ctx.size, ctx.dtype = list(x.shape), x.dtype


def _sent_backward(ctx: Any, thread: Tensor) -> tuple[Tensor | None, ...]:
    if not differentiable(ctx.dtype):
        return thread, None, None, None
    thread, grad = received(thread, ctx.size, ctx.dtype, ctx.group, ctx.target)
    return thread, grad, None, None


differentiate("pieces_gathered", _gathered_backward, _save_gathered)
differentiate("pieces_received", _received_backward, _save_received)
differentiate("pieces_sent", _sent_backward, _save_sent)


class Closed(Function):
    """(value, thread) -> value; in the backward pass the chain of the thread begins here."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, thread: Tensor) -> Tensor:
        ctx.thread = thread.new_zeros(())
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, ctx.thread

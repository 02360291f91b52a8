"""The linear recurrence in C: token by token, forward and backward, in float32 on a processor.

A piece of the state stays in registers while a block of tokens passes, so that an entry costs three operations a token,
about as many as chunks of matrix products need for heads of common sizes, and a decay is a factor alone: one of zero
clears the state, and none overflows. The backward pass reads the arguments alone. It computes the states again for the
gradients of queries, goes backwards for those of keys and values, and keeps for those of decays the state after every
64th token of the one head of one row that a thread works on. Queries and keys that heads share are read where they are,
and their gradients are summed for up to `SHARE` heads in place. The sources are
`weft/ops/native/linear_recurrence.c` and what it includes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.ops.forms import Form
from weft.ops.linear_recurrence import LinearRecurrenceCall, Recurred
from weft.ops.linear_recurrence_chunks import backward as chunked_backward
from weft.ops.native.library import ADDRESS, COUNT, run, structure, why_not
from weft.ops.operator import differentiate, operator

SHARE = 4
"""Heads of a group whose gradients of shared queries and keys are one sum in C; PyTorch adds these."""

_RecurrenceCall = structure(
    (ADDRESS, "q k v decay before dy dafter"), (3 * COUNT, "q_at k_at v_at decay_at dy_at"),
    (ADDRESS, "y after dq dk dv dlog dbefore"), (COUNT, "rows steps heads groups size value_size kept share next"))
"""`Recurrence` of native/linear_recurrence.h."""


def _adjacent(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _run(name: str, pieces: int, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, dy: Tensor | None = None,
         **tensors: Tensor | None) -> None:
    """Run a function of the library; the features of the arguments that it has names for are adjacent."""
    call = _RecurrenceCall(rows=v.shape[0], steps=v.shape[1], heads=v.shape[2], groups=q.shape[2], size=q.shape[3],
                           value_size=v.shape[3], kept=0 if decay is None else decay.shape[3], share=SHARE)
    for name_of, x in (("q", q), ("k", k), ("v", v), ("decay", decay), ("dy", dy)):
        if x is not None:
            steps = (stride if size > 1 else 0 for size, stride in zip(x.shape[:3], x.stride()[:3], strict=True))
            setattr(call, name_of, x.data_ptr())
            setattr(call, f"{name_of}_at", (3 * COUNT)(*steps))
    run(f"weft_linear_recurrence_{name}", call, pieces, "the linear recurrence in C could not reserve the memory of "
        "a head. Give it fewer threads or shorter rows.", **tensors)


def _forward(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    y, after = torch.empty_like(v, memory_format=torch.contiguous_format), v.new_empty(before.shape)
    decay = None if log_decay is None else log_decay.exp().contiguous()
    _run("forward", v.shape[0] * v.shape[2], _adjacent(q), _adjacent(k), _adjacent(v), decay, before=before, y=y,
         after=after)
    return y, after


def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    return v.new_empty(v.shape), v.new_empty(before.shape)


def _backward(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None,
              before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows, steps, heads, groups = v.shape[0], v.shape[1], v.shape[2], q.shape[2]
    parts = -(-(heads // groups) // SHARE)  # sums of a group's gradients that C leaves to be added
    decay = None if log_decay is None else log_decay.exp().contiguous()
    q, k, v = _adjacent(q), _adjacent(k), _adjacent(v)
    dq, dk = (v.new_empty(rows, steps, groups, parts, q.shape[3]) for _ in range(2))
    dv, dbefore = v.new_empty(v.shape), v.new_empty(before.shape)
    dlog = None if decay is None else v.new_empty(rows, steps, heads, decay.shape[3])
    _run("backward", rows * groups * parts, q, k, v, decay, _adjacent(grad), before=before, dafter=grad_after, dq=dq,
         dk=dk, dv=dv, dlog=dlog, dbefore=dbefore)
    dq, dk = (each[:, :, :, 0] if parts == 1 else each.sum(3) for each in (dq, dk))
    slopes = v.new_empty(0) if dlog is None or log_decay is None else dlog.sum_to_size(log_decay.shape)
    return dq.contiguous(), dk.contiguous(), dv, slopes, dbefore


def _backward_shapes(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None,
                     before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    decay = q.new_empty(0) if log_decay is None else q.new_empty(log_decay.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), decay, before.new_empty(before.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, grad: Tensor | None, grad_after: Tensor | None) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: what a checkpoint computes again it gives once
    _, _, v, log_decay, before = saved
    grad = torch.zeros_like(v) if grad is None else grad
    grad_after = torch.zeros_like(before) if grad_after is None else grad_after
    work = chunked_backward if torch.is_grad_enabled() else _BACKWARD  # C has no second derivative
    dq, dk, dv, slopes, dbefore = work(grad, grad_after, *saved)
    return dq, dk, dv, None if log_decay is None else slopes, dbefore


_FORWARD = operator("native_linear_recurrence", _forward, _forward_shapes)
_BACKWARD = operator("native_linear_recurrence_backward", _backward, _backward_shapes)
differentiate("native_linear_recurrence", _gradient, _save)


def native_flops(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """k v^T and q S of every token."""
    return 4 * v.numel() * k.shape[3]


def native_backward_flops(grad: Tensor, grad_after: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """The states again with dq, and their gradients with dk and with dv."""
    return 12 * v.numel() * k.shape[3]


def _native(call: LinearRecurrenceCall) -> Recurred:
    found: Recurred = _FORWARD(*call)
    return found


def _hindrance(call: LinearRecurrenceCall) -> str | None:
    """Why the code in C cannot serve."""
    if call.q.shape[2] != call.k.shape[2]:
        return "several queries read one state"
    if not (call.q.numel() and call.v.numel()):
        return "there are no rows or no features"
    if any(each is not None and each.dtype != call.q.dtype for each in call):
        return "its tensors are of several dtypes"
    return why_not()


FORM: Form[LinearRecurrenceCall, Recurred] = Form(
    "native", _native, "token by token in C, the state in registers", devices=frozenset({"cpu"}),
    dtypes=frozenset({torch.float32}), transformed=False, serves=_hindrance,
    flops={"weft.native_linear_recurrence": native_flops,
           "weft.native_linear_recurrence_backward": native_backward_flops},
    known_as=("c", "cpp", "kernel"))
"""Of `weft.ops.linear_recurrence`."""

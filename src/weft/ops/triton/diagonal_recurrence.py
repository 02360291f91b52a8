"""The diagonal recurrence by Triton, forward and backward, in float32 on an NVIDIA GPU.

A thread takes one feature of one row through all tokens, or through those of a segment where rows and features alone
would leave the GPU idle. Uncut, the forward pass reads x and the logarithms of the decays once and writes the states,
and the backward pass reads dh, the logarithms and the states and writes two gradients: 12 and 20 bytes for each number
of x; cut, 20 and 28. At 3.0 TB/s the least times for 8 rows of 2,048 tokens are so, uncut, 0.10 and 0.17 ms for 1,536
features, 0.17 and 0.28 ms for 2,560. Nothing is kept between the passes but arguments and states. The sources are
`kernels/diagonal_recurrence.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from weft.ops.diagonal_recurrence import DiagonalRecurrenceCall
from weft.ops.forms import Form
from weft.ops.operator import Kernel, differentiate, operator
from weft.ops.triton.library import devices, interpreted, kernels, offer, on_device_of, why_not

BLOCK = 256
"""Features whose segments one program chains."""

Slopes = tuple[Tensor, Tensor, Tensor]
"""Gradients of the logarithms, of x and of the state before."""


@final
class ChannelPlan(NamedTuple):
    """How the work of features that do not mix is cut.

    Attributes:
        channels: of a program; a thread has one.
        tile: tokens that are read together.
        programs: rows are cut into segments until there are so many, four for each of 132 multiprocessors.
        shortest: tokens of a segment, at least; a multiple of ``tile``.
    """

    channels: int = 32
    tile: int = 16
    programs: int = 528
    shortest: int = 128

    def cut(self, x: Tensor) -> tuple[int, int, int, int]:
        """Programs by features, rows and segments, and tokens of a segment."""
        rows, steps, channels = x.shape
        pieces = -(-channels // self.channels)
        wanted = max(1, self.programs // (rows * pieces))
        segment = max(self.shortest, -(-steps // wanted // self.tile) * self.tile)
        return pieces, rows, -(-steps // segment), segment

    def sizes(self) -> dict[str, int]:
        """The sizes that the kernels are compiled for."""
        return {"TILE": self.tile, "BLOCK": self.channels, "num_warps": max(1, self.channels // 32)}


def plan_of() -> ChannelPlan:
    """That of this process; the interpreter takes as long for many features as for few."""
    return ChannelPlan(128, 4, programs=1) if interpreted() else ChannelPlan()


def run_forward(x: Tensor, log_decay: Tensor, before: Tensor, plan: ChannelPlan) -> Tensor:
    """The forward operator, by a plan."""
    x, log_decay, before = x.contiguous(), log_decay.contiguous(), before.contiguous()
    h, cut = x.new_empty(x.shape), plan.cut(x)
    with on_device_of(x):
        entries = _entries(plan, cut, before, x, log_decay, reverse=False)
        kernels("diagonal_recurrence").forward[cut[:3]](
            x, log_decay, entries, h, x.shape[1], cut[3], x.shape[2], **plan.sizes())
    return h


def run_backward(dh: Tensor, log_decay: Tensor, before: Tensor, h: Tensor, plan: ChannelPlan) -> Slopes:
    """The backward operator, by a plan."""
    dh, log_decay, before, h = (each.contiguous() for each in (dh, log_decay, before, h))
    dlogs, dx, dbefore, cut = torch.empty_like(h), torch.empty_like(h), torch.empty_like(before), plan.cut(h)
    with on_device_of(h):
        entries = _entries(plan, cut, torch.zeros_like(before), dh, log_decay, reverse=True)
        kernels("diagonal_recurrence").backward[cut[:3]](
            dh, entries, log_decay, before, h, dx, dlogs, dbefore, h.shape[1], cut[3], h.shape[2], **plan.sizes())
    return dlogs, dx, dbefore


def _entries(plan: ChannelPlan, cut: tuple[int, int, int, int], first: Tensor, x: Tensor, log_decay: Tensor, *,
             reverse: bool) -> Tensor:
    """The state with which each segment begins, [S,B,D], or in reverse the gradient of the state after it."""
    if cut[2] == 1:
        return first
    added, decays = (first.new_empty(cut[2], *first.shape) for _ in range(2))
    kernels("diagonal_recurrence").segments[cut[:3]](
        x, log_decay, added, decays, x.shape[1], cut[3], x.shape[2], REVERSE=reverse, **plan.sizes())
    kernels("selective_scan").chain[-(-first.numel() // BLOCK),](
        first, added, decays, first.numel(), cut[2], REVERSE=reverse, BLOCK=BLOCK)
    return added


def _run(x: Tensor, log_decay: Tensor, before: Tensor) -> Tensor:
    return run_forward(x, log_decay, before, plan_of())


def _run_shapes(x: Tensor, log_decay: Tensor, before: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _run_backward(dh: Tensor, log_decay: Tensor, before: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return run_backward(dh, log_decay, before, h, plan_of())


def _backward_shapes(dh: Tensor, log_decay: Tensor, before: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return h.new_empty(h.shape), h.new_empty(h.shape), before.new_empty(before.shape)


def _slopes(dh: Tensor, log_decay: Tensor, before: Tensor, h: Tensor) -> Slopes:
    """The backward pass by the operator itself, backwards in time, so that autograd can differentiate it again."""
    after = torch.cat([log_decay[:, 1:], torch.zeros_like(log_decay[:, :1])], 1)
    dx = _forward(dh.flip(1), after.flip(1), torch.zeros_like(before)).flip(1)
    passed = log_decay.exp() * dx
    return passed * torch.cat([before[:, None], h[:, :-1]], 1), dx, passed[:, 0]


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1], inputs[2], output)


def _gradient(ctx: Any, dh: Tensor) -> Slopes:
    saved = ctx.saved_tensors  # read once: what a checkpoint computes again it gives once
    work: Kernel = _slopes if torch.is_grad_enabled() else _backward
    dlogs, dx, dbefore = work(dh, *saved)
    return dx, dlogs, dbefore


_forward = operator("triton_diagonal_recurrence", _run, _run_shapes)
_backward = operator("triton_diagonal_recurrence_backward", _run_backward, _backward_shapes)
differentiate("triton_diagonal_recurrence", _gradient, _save)


def _recurrence(call: DiagonalRecurrenceCall) -> Tensor:
    found: Tensor = _forward(*call)
    return found


def _hindrance(call: DiagonalRecurrenceCall) -> str | None:
    """Why Triton cannot serve."""
    if any(each.dtype != call.x.dtype for each in call):
        return "its tensors are of several dtypes"
    return why_not() if call.x.numel() else "there are no features or rows"


def _flops(x: Tensor, *_: object) -> int:
    return 2 * x.numel()


def _backward_flops(dh: Tensor, *_: object) -> int:
    return 4 * dh.numel()


FORM: Form[DiagonalRecurrenceCall, Tensor] = Form(
    "triton", _recurrence, "token by token by Triton, states in registers", devices=devices(),
    dtypes=frozenset({torch.float32}), transformed=False, serves=_hindrance, offer=offer(),
    flops={"weft.triton_diagonal_recurrence": _flops, "weft.triton_diagonal_recurrence_backward": _backward_flops},
    known_as=("cuda", "gpu"))
"""Of `weft.ops.diagonal_recurrence`."""

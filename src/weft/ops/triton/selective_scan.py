"""The selective scan by Triton, forward and backward, in float32 on an NVIDIA GPU.

Arguments, results and what the forward pass stores for the backward pass (the states before each chunk of 32 tokens)
are those of `weft.ops.selective_scan_chunks`. The gradients of B and C are summed over the channels of a program there
and over programs here, in one order, so that a call gives the same bits every time; until then they take 2 N / 16
numbers for each token and channel. The sources are `kernels/selective_scan.py`.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor

from weft.ops.forms import Form
from weft.ops.operator import differentiable
from weft.ops.selective_scan_chunks import (
    CHUNK,
    Scanned,
    SelectiveScanCall,
    backward_flops,
    forward_flops,
    forward_shapes,
    kept_shape,
    stepped,
)
from weft.ops.triton.library import devices, interpreted, kernels, offer, on_device_of, why_not

MOST_STATES = 256
"""Of a channel: those of a program's channels stay in registers."""


_BLOCK = 256
"""Entries of states that one program chains."""

PROGRAMS = 4224
"""Rows are cut into segments until there are so many: 32 for each of 132 multiprocessors, measured on an H100."""

SHORTEST = 4 * CHUNK
"""Tokens of a segment, at least."""


@final
class ScanPlan(NamedTuple):
    """How the work is cut.

    Attributes:
        channels: of a program, a multiple of 8.
        tile: tokens that are read together; a divisor of `CHUNK`.
        programs: `PROGRAMS`.
        shortest: `SHORTEST`, a multiple of `CHUNK`.
    """

    channels: int = 16
    tile: int = 8
    warps: int = 1
    programs: int = PROGRAMS
    shortest: int = SHORTEST

    def sizes(self, states: int) -> dict[str, int]:
        """The sizes that the kernels are compiled for."""
        wide = 1 << (states - 1).bit_length()
        lanes = min(wide, 4)
        return {"NR": wide // lanes, "NL": lanes, "DR": self.channels // 8, "DL": 8, "CHUNK": CHUNK, "TILE": self.tile,
                "num_warps": self.warps}

    def cut(self, u: Tensor) -> _Cut:
        """The segments of a call."""
        rows, steps, channels = u.shape
        pieces = -(-channels // self.channels)
        wanted = max(1, self.programs // (rows * pieces))
        segment = max(self.shortest, -(-steps // wanted // CHUNK) * CHUNK)
        return _Cut(pieces, rows, -(-steps // segment), segment)


class _Cut(NamedTuple):
    """Programs by channels, rows and segments, and tokens of a segment."""

    pieces: int
    rows: int
    parts: int
    segment: int


def scan(call: SelectiveScanCall) -> Scanned:
    """The outputs and the state after them."""
    u, dt, a, b, c, before, starts = call
    y, after, _ = _forward(u, dt, a, b, c, before, starts, torch.is_grad_enabled())
    return y, after


def beyond(call: SelectiveScanCall) -> str | None:
    """Why Triton cannot serve."""
    if any(each.dtype != call.u.dtype for each in (call.dt, call.a, call.b, call.c, call.before)):
        return "its tensors are of several dtypes"
    if len(call.a) > MOST_STATES:
        return f"a channel has more than {MOST_STATES} states"
    if not (call.u.numel() and call.a.numel()):
        return "there are no rows, channels or states"
    return why_not()


def run_forward(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, before: Tensor, starts: Tensor | None,
                keeps: bool, plan: ScanPlan) -> tuple[Tensor, Tensor, Tensor]:
    """The forward operator, by a plan."""
    u, dt, a, b, c, before = (x.contiguous() for x in (u, dt, a, b, c, before))
    y, after = u.new_empty(u.shape), u.new_empty(before.shape)
    kept, cut, marks = u.new_empty(kept_shape(before, u.shape[1], keeps)), plan.cut(u), _bytes(starts)
    with on_device_of(u):
        entries = _entries(plan, cut, before, u, b, dt, a, marks, reverse=False)
        kernels("selective_scan").forward[cut[:3]](
            u, dt, a, b, c, entries, marks, y, after, kept, u.shape[1], cut.segment, u.shape[2], len(a),
            STARTS=starts is not None, KEEPS=keeps, **plan.sizes(len(a)))
    return y, after, kept


def run_backward(dy: Tensor, dafter: Tensor, u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, kept: Tensor,
                 starts: Tensor | None, plan: ScanPlan) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The backward operator, by a plan."""
    dy, dafter, u, dt, a, b, c, kept = (x.contiguous() for x in (dy, dafter, u, dt, a, b, c, kept))
    cut, marks = plan.cut(u), _bytes(starts)
    du, ddt, dbefore = (u.new_empty(shape) for shape in (u.shape, u.shape, dafter.shape))
    da = u.new_empty(cut.parts, *dafter.shape)
    db, dc = (u.new_empty(cut.rows, cut.pieces, u.shape[1], len(a)) for _ in range(2))
    with on_device_of(u):
        entries = _entries(plan, cut, dafter, dy, c, dt, a, marks, reverse=True)
        kernels("selective_scan").backward[cut[:3]](
            dy, entries, u, dt, a, b, c, kept, marks, du, ddt, da, db, dc, dbefore, u.shape[1], cut.segment, u.shape[2],
            len(a), STARTS=starts is not None, **plan.sizes(len(a)))
    return du, ddt, da.sum((0, 1)), db.sum(1), dc.sum(1), dbefore


def _entries(plan: ScanPlan, cut: _Cut, first: Tensor, x: Tensor, y: Tensor, dt: Tensor, a: Tensor,
             marks: Tensor | None, *,
             reverse: bool) -> Tensor:
    """The state with which each segment begins, [S,B,N,D], or in reverse the gradient of the state after it."""
    if cut.parts == 1:
        return first
    added, decays = (first.new_empty(cut.parts, *first.shape) for _ in range(2))
    kernels("selective_scan").segments[cut[:3]](
        x, y, dt, a, marks, added, decays, dt.shape[1], cut.segment, dt.shape[2], len(a), STARTS=marks is not None,
        REVERSE=reverse, **plan.sizes(len(a)))
    kernels("selective_scan").chain[-(-first.numel() // _BLOCK),](
        first, added, decays, first.numel(), cut.parts, REVERSE=reverse, BLOCK=_BLOCK)
    return added


def _bytes(starts: Tensor | None) -> Tensor | None:
    return None if starts is None else starts.contiguous().view(torch.uint8)


def _run_forward(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, before: Tensor, starts: Tensor | None,
                 keeps: bool) -> tuple[Tensor, Tensor, Tensor]:
    return run_forward(u, dt, a, b, c, before, starts, keeps, plan_of(len(a), forward=True))


def _run_backward(dy: Tensor, dafter: Tensor, u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, before: Tensor,
                  starts: Tensor | None, keeps: bool,
                  kept: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return run_backward(dy, dafter, u, dt, a, b, c, kept, starts, plan_of(len(a), forward=False))


def plan_of(states: int, *, forward: bool) -> ScanPlan:
    """For so many states of a channel: a thread has no more than eight at a time. The backward pass keeps twice as many
    numbers for a token. The interpreter takes as long for many channels as for few."""
    if interpreted():
        return ScanPlan(channels=128, programs=1)
    return ScanPlan(channels=8 if states > 16 else 16, tile=8 if forward and states <= 16 else 4,
                    warps=max(1, states // 32))


_forward = differentiable("triton_selective_scan", _run_forward, forward_shapes, _run_backward, stepped, 6, keeps=True)


FORM: Form[SelectiveScanCall, Scanned] = Form(
    "triton", scan, "token by token by Triton, the states in registers", devices=devices(),
    dtypes=frozenset({torch.float32}), transformed=False, offer=offer(), serves=beyond,
    flops={"weft.triton_selective_scan": forward_flops, "weft.triton_selective_scan_backward": backward_flops},
    known_as=("cuda", "gpu"))
"""Of `weft.ops.gated_scan`."""

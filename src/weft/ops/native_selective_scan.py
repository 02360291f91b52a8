"""The selective scan in C, forward and backward, in float32 on a processor.

Vectors hold neighbouring channels, so that nothing but the gradients of B and C is summed across their lanes. A piece
of work is 64 channels of one row, from the first token to the last; sums over channels of several pieces are taken
here, in one order, so that a call gives the same bits at any number of threads. The states before each chunk of 32
tokens are stored for the backward pass, which computes the others again. The sources are
`weft/ops/native/selective_scan.c` and what it includes.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from weft.ops.native.library import Incomplete, run
from weft.ops.operator import differentiate, operator
from weft.ops.selective_scan_chunks import (
    Scanned,
    SelectiveScanCall,
    backward_shapes,
    forward_shapes,
    kept_shape,
    save,
    slopes_of,
)

SLICE = 64
"""Channels of a piece of work; as in native/selective_scan.h."""


class _Call(ctypes.Structure):
    """`Scan` of native/selective_scan.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("u", "dt", "a", "b", "c", "before", "starts", "y", "after", "kept", "dy",
                                               "dafter", "du", "ddt", "da", "db", "dc", "dbefore")),
        *((name, ctypes.c_long) for name in ("batch", "steps", "channels", "states", "next")))


def scan(call: SelectiveScanCall) -> Scanned:
    """The outputs and the state after them."""
    u, dt, a, b, c, before, starts = call
    y, after, _ = _forward(u, dt, a, b, c, before, starts, torch.is_grad_enabled())
    return y, after


def _run(name: str, u: Tensor, a: Tensor, **tensors: Tensor | None) -> None:
    """Run a function of the library on contiguous tensors."""
    call = _Call(batch=len(u), steps=u.shape[1], channels=u.shape[2], states=len(a))
    for field, x in ({"u": u, "a": a} | tensors).items():
        setattr(call, field, None if x is None else x.data_ptr())
    run(f"weft_selective_scan_{name}", call)
    if call.next < len(u) * _slices(u):
        raise Incomplete("the selective scan in C could not reserve the memory of a chunk. Give it fewer threads.")


def _slices(u: Tensor) -> int:
    """Pieces of work of one row."""
    return -(-u.shape[2] // SLICE)


def _run_forward(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, before: Tensor, starts: Tensor | None,
                 keeps: bool) -> tuple[Tensor, Tensor, Tensor]:
    u, dt, a, b, c, before = (x.contiguous() for x in (u, dt, a, b, c, before))
    places = None if starts is None else starts.contiguous()
    y, after = u.new_empty(u.shape), u.new_empty(before.shape)
    kept = u.new_empty(kept_shape(before, u.shape[1], keeps))
    _run("forward", u, a, dt=dt, b=b, c=c, before=before, starts=places, y=y, after=after,
         kept=kept if keeps else None)
    return y, after, kept


def _run_backward(dy: Tensor, dafter: Tensor, u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, kept: Tensor,
                  starts: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dy, dafter, u, dt, a, b, c, kept = (x.contiguous() for x in (dy, dafter, u, dt, a, b, c, kept))
    places, batch, length = None if starts is None else starts.contiguous(), len(u), u.shape[1]
    du, ddt, da, dbefore = (u.new_empty(shape) for shape in (u.shape, u.shape, dafter.shape, dafter.shape))
    db, dc = (u.new_empty(batch, _slices(u), len(a), length) for _ in range(2))  # by piece of work
    _run("backward", u, a, dt=dt, b=b, c=c, starts=places, kept=kept, dy=dy, dafter=dafter, du=du, ddt=ddt, da=da,
         db=db, dc=dc, dbefore=dbefore)
    db, dc = (x.sum(1).transpose(1, 2).contiguous() for x in (db, dc))
    return du, ddt, da.sum(0), db, dc, dbefore


def _gradient(ctx: Any, dy: Tensor | None, dafter: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return slopes_of(ctx, dy, dafter, _backward)


_forward = operator("native_selective_scan", _run_forward, forward_shapes)
_backward = operator("native_selective_scan_backward", _run_backward, backward_shapes)
differentiate("native_selective_scan", _gradient, save)

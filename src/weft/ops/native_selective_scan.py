"""The selective scan in C, forward and backward, in float32 on a processor: by itself, and with the softplus, the skip
and the gate of Mamba's block, so that what lies between them is never written to memory.

Vectors hold neighbouring channels, so that nothing but the gradients of B and C is summed across their lanes. A piece
of work is 64 channels of one row, from the first token to the last; sums over channels of several pieces are taken
here, in one order, so that a call gives the same bits at any number of threads. The states before each chunk of 32
tokens are stored for the backward pass, which computes the others again. The sources are
`weft/ops/native/selective_scan.c` and what it includes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.ops.forms import Form
from weft.ops.gated_scan import GatedScanCall, unforced, written_out
from weft.ops.native.library import ADDRESS, COUNT, run, structure, why_not
from weft.ops.operator import differentiable
from weft.ops.selective_scan_chunks import (
    Scanned,
    SelectiveScanCall,
    backward_flops,
    forward_flops,
    forward_shapes,
    kept_shape,
    stepped,
)

SLICE = 64
"""Channels of a piece of work; as in native/selective_scan.h."""


_ScanCall = structure(
    (ADDRESS, "u dt a b c before bias skip gate starts y after kept dy dafter du ddt da db dc dbefore"),
    (ADDRESS, "dbias dskip dgate"),
    (COUNT, "batch steps channels states across next"))
"""`Scan` of native/selective_scan.h."""


def scan(call: SelectiveScanCall) -> Scanned:
    """The outputs and the state after them."""
    u, dt, a, b, c, before, starts = call
    y, after, _ = _forward(u, dt, a, b, c, before, starts, torch.is_grad_enabled())
    return y, after


def _run(name: str, u: Tensor, a: Tensor, gate: Tensor | None = None, **tensors: Tensor | None) -> None:
    """Run a function of the library. Tokens of a gate may lie apart, as in a half of a wider tensor."""
    call = _ScanCall(batch=len(u), steps=u.shape[1], channels=u.shape[2], states=len(a))
    if gate is not None:
        whole = gate.stride(2) == 1 and gate.stride(0) == gate.shape[1] * gate.stride(1)
        gate = gate if whole else gate.contiguous()
        call.gate, call.across = gate.data_ptr(), gate.stride(1)
    run(f"weft_selective_scan_{name}", call, len(u) * _slices(u),
        "the selective scan in C could not reserve the memory of a chunk. Give it fewer threads.", u=u, a=a, **tensors)


def _slices(u: Tensor) -> int:
    """Pieces of work of one row."""
    return -(-u.shape[2] // SLICE)


def _run_forward(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, before: Tensor, starts: Tensor | None,
                 keeps: bool) -> tuple[Tensor, Tensor, Tensor]:
    y, after = u.new_empty(u.shape), u.new_empty(before.shape)
    kept = u.new_empty(kept_shape(before, u.shape[1], keeps))
    _run("forward", u, a, dt=dt, b=b, c=c, before=before, starts=starts, y=y, after=after, kept=kept if keeps else None)
    return y, after, kept


def _run_backward(dy: Tensor, dafter: Tensor, u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, before: Tensor,
                  starts: Tensor | None, keeps: bool,
                  kept: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    du, ddt, da, dbefore = (u.new_empty(shape) for shape in (u.shape, u.shape, dafter.shape, dafter.shape))
    db, dc = (u.new_empty(len(u), _slices(u), len(a), u.shape[1]) for _ in range(2))  # by piece of work
    _run("backward", u, a, dt=dt, b=b, c=c, starts=starts, kept=kept, dy=dy, dafter=dafter, du=du, ddt=ddt, da=da,
         db=db, dc=dc, dbefore=dbefore)
    db, dc = (x.sum(1).transpose(1, 2) for x in (db, dc))
    return du, ddt, da.sum(0), db, dc, dbefore


_forward = differentiable("native_selective_scan", _run_forward, forward_shapes, _run_backward, stepped, 6, keeps=True)


def gated_scan(call: GatedScanCall) -> Scanned:
    """The gated outputs and the state after them."""
    y, after, _ = _gated_forward(*call, torch.is_grad_enabled())
    return y, after


def _run_gated(u: Tensor, step: Tensor, bias: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, gate: Tensor,
               before: Tensor, starts: Tensor | None, keeps: bool) -> tuple[Tensor, Tensor, Tensor]:
    y, after, kept = _gated_shapes(u, step, bias, a, b, c, skip, gate, before, starts, keeps)
    _run("forward", u, a, gate, dt=step, bias=bias, b=b, c=c, skip=skip, before=before, starts=starts, y=y, after=after,
         kept=kept if keeps else None)
    return y, after, kept


def _gated_shapes(u: Tensor, step: Tensor, bias: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, gate: Tensor,
                  before: Tensor, starts: Tensor | None, keeps: bool) -> tuple[Tensor, Tensor, Tensor]:
    return (u.new_empty(u.shape), u.new_empty(before.shape), u.new_empty(kept_shape(before, u.shape[1], keeps)))


def _run_gated_backward(dy: Tensor, dafter: Tensor, u: Tensor, step: Tensor, bias: Tensor, a: Tensor, b: Tensor,
                        c: Tensor, skip: Tensor, gate: Tensor, before: Tensor, starts: Tensor | None, keeps: bool,
                        kept: Tensor) -> tuple[
                            Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of a call's tensors, in their order."""
    du, dstep, dgate = (u.new_empty(u.shape) for _ in range(3))
    da, dbefore = (u.new_empty(dafter.shape) for _ in range(2))
    dbias, dskip = (u.new_empty(len(u), u.shape[2]) for _ in range(2))
    db, dc = (u.new_empty(len(u), _slices(u), len(a), u.shape[1]) for _ in range(2))  # by piece of work
    _run("backward", u, a, gate, dt=step, bias=bias, b=b, c=c, skip=skip, starts=starts, kept=kept, dy=dy,
         dafter=dafter, du=du, ddt=dstep, da=da, db=db, dc=dc, dbefore=dbefore, dbias=dbias, dskip=dskip, dgate=dgate)
    db, dc = (x.sum(1).transpose(1, 2) for x in (db, dc))
    return du, dstep, dbias.sum(0), da.sum(0), db, dc, dskip.sum(0), dgate, dbefore


def _gated_plain(*given: Any) -> Scanned:
    return written_out(GatedScanCall._make(given[:-1]))


_gated_forward = differentiable("native_gated_scan", _run_gated, _gated_shapes, _run_gated_backward, _gated_plain, 9,
                                keeps=True)


def gated_flops(u: Tensor, step: Tensor, bias: Tensor, a: Tensor, *_: Any) -> int:
    """Those of the scan."""
    return forward_flops(u, step, a)


def gated_backward_flops(dy: Tensor, dafter: Tensor, u: Tensor, step: Tensor, bias: Tensor, a: Tensor, *_: Any) -> int:
    """Those of the scan."""
    return backward_flops(dy, dafter, u, step, a)


def _beyond_scan(call: SelectiveScanCall) -> str | None:
    """Why C cannot serve."""
    if any(each.dtype != call.u.dtype for each in (call.dt, call.a, call.b, call.c, call.before)):
        return "its tensors are of several dtypes"
    return why_not()


SCAN: Form[SelectiveScanCall, Scanned] = Form(
    "native", scan, "chunks of 32 tokens in C", devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}),
    transformed=False, serves=_beyond_scan,
    flops={"weft.native_selective_scan": forward_flops, "weft.native_selective_scan_backward": backward_flops},
    known_as=("c",))
"""Of `weft.ops.gated_scan`."""


def _beyond_gated(call: GatedScanCall) -> str | None:
    """Why C cannot serve."""
    if any(each.dtype != call.u.dtype for each in call[:9] if each is not None):
        return "its tensors are of several dtypes"
    return why_not()


def _free(call: GatedScanCall) -> str | None:
    return unforced(call) or ("one token" if call.u.shape[1] == 1 else None)


GATED: Form[GatedScanCall, Scanned] = Form(
    "native", gated_scan, "chunks of 32 tokens in C, all in one pass", devices=frozenset({"cpu"}),
    dtypes=frozenset({torch.float32}), transformed=False, serves=_beyond_gated, worth=_free,
    flops={"weft.native_gated_scan": gated_flops, "weft.native_gated_scan_backward": gated_backward_flops},
    known_as=("c",))
"""Of `weft.ops.gated_scan`."""

"""One token of what Mamba's block does between its products, in C: a short convolution with its silu, and the selective
scan with its softplus, its skip and its gate. The sources are `weft/ops/native/token_states.c` and what it includes.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from weft.ops.few_rows import unavailable
from weft.ops.forms import Form
from weft.ops.gated_scan import GatedScanCall, unforced
from weft.ops.native.library import ADDRESS, COUNT, structure
from weft.ops.native.sequence import CallHeader, NativeCall, perform, written
from weft.ops.native_token import DTYPES
from weft.ops.operator import operator
from weft.ops.selective_scan_chunks import Scanned, forward_flops
from weft.ops.short_convolution import ShortConvolutionCall, beyond_one_token

SLICED = 256
"""Channels of a piece of work; as in native/token.h."""


_Taps = structure((CallHeader, "shared"), (ctypes.c_int, "narrow silu"),
                  (COUNT, "batch channels taps x_batch x_tap"), (ADDRESS, "x weight bias y"))
_ScanToken = structure((CallHeader, "shared"), (ctypes.c_int, "narrow"),
                       (COUNT, "batch channels states b_batch c_batch gate_batch"),
                       (ADDRESS, "u step bias a b c skip before gate starts y after"))


def _taps(inputs: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, silu: bool) -> Tensor:
    y = _taps_shape(inputs, weight, bias, dilation, silu)
    perform(_taps_call(y, inputs.contiguous(), weight.contiguous(), None if bias is None else bias.contiguous(),
                       dilation, silu), y)
    return y


def _taps_shape(inputs: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, silu: bool) -> Tensor:
    return inputs.new_empty(inputs.shape[0], 1, inputs.shape[2])


def taps_flops(inputs: Tensor, weight: Tensor, *_: object) -> int:
    """A product for every tap and channel."""
    return 2 * len(inputs) * weight.numel()


native_taps = operator("native_taps", _taps, _taps_shape)
"""One token of a depthwise causal convolution: inputs [B,P+1,D], weight [K,D] and bias [D] in one dtype, float32 or
bfloat16; P = (K - 1) ``dilation``. With ``silu`` its result goes through one."""


@written(native_taps)
def _taps_call(y: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None, dilation: int,
               silu: bool) -> NativeCall | None:
    if any(each is not None and not each.is_contiguous() for each in (inputs, weight, bias)):
        return None
    batch, _, channels = inputs.shape
    return NativeCall("weft_taps_call", _Taps(
        CallHeader(pieces=batch * -(-channels // SLICED)), inputs.dtype is torch.bfloat16, silu, batch, channels,
        len(weight), inputs.stride(0), dilation * inputs.stride(1)),
        {"x": inputs, "weight": weight} | ({} if bias is None else {"bias": bias}), ("y",))


def _scanned(u: Tensor, step: Tensor, bias: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, gate: Tensor,
             before: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    y, after = _scanned_shapes(u, step, bias, a, b, c, skip, gate, before, starts)
    u, step, bias, a, skip, before = (x.contiguous() for x in (u, step, bias, a, skip, before))
    b, c, gate = (x if x.stride(-1) == 1 else x.contiguous() for x in (b, c, gate))
    perform(_scan_call((y, after), u, step, bias, a, b, c, skip, gate, before, starts), y, after)
    return y, after


def _scanned_shapes(u: Tensor, step: Tensor, bias: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, gate: Tensor,
                    before: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), before.new_empty(before.shape)


native_scan_token = operator("native_scan_token", _scanned, _scanned_shapes)
"""One token of `weft.ops.gated_scan.GatedScanCall`, whose arguments these are: all in float32, but for the gate, which
may be in bfloat16."""


@written(native_scan_token)
def _scan_call(results: tuple[Tensor, ...], u: Tensor, step: Tensor, bias: Tensor, a: Tensor, b: Tensor, c: Tensor,
               skip: Tensor, gate: Tensor, before: Tensor, starts: Tensor | None) -> NativeCall | None:
    whole = all(x.is_contiguous() for x in (u, step, bias, a, skip, before) if x is not None)
    if not whole or any(x.stride(-1) != 1 and x.shape[-1] != 1 for x in (b, c, gate)) or (
            starts is not None and not starts.is_contiguous()):
        return None
    batch, _, channels = u.shape
    named = {"u": u, "step": step, "bias": bias, "a": a, "b": b, "c": c, "skip": skip, "before": before, "gate": gate}
    return NativeCall("weft_scan_token_call", _ScanToken(
        CallHeader(pieces=batch * -(-channels // SLICED)), gate.dtype is torch.bfloat16, batch, channels, len(a),
        *(x.stride(0) if batch > 1 else 0 for x in (b, c, gate))),
        named | ({} if starts is None else {"starts": starts}), ("y", "after"))


def _scan_flops(u: Tensor, step: Tensor, bias: Tensor, a: Tensor, *_: object) -> int:
    return forward_flops(u, step, a)


def _token(call: GatedScanCall) -> Scanned:
    starts = None if call.starts is None else call.starts.contiguous()
    y, after = native_scan_token(*call[:3], call.a.contiguous(), *call[4:9], starts)
    return y, after


def _beyond_token(call: GatedScanCall) -> str | None:
    """Why C cannot serve one token."""
    if call.u.shape[1] != 1:
        return "several tokens"
    if any(each.dtype != torch.float32 for each in (*call[1:7], call.before)) or call.gate.dtype not in DTYPES:
        return "its tensors are of several dtypes"
    return "there are no rows" if call.u.numel() == 0 else unavailable()


TOKEN: Form[GatedScanCall, Scanned] = Form(
    "token", _token, "one token in C", devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}),
    gradients="without", compiled=False, transformed=False, serves=_beyond_token, worth=unforced,
    flops={"weft.native_scan_token": _scan_flops})
"""Of `weft.ops.gated_scan`."""


def _one_token(call: ShortConvolutionCall) -> Tensor:
    y: Tensor = native_taps(call.inputs, call.weight[:, 0].t().contiguous(), call.bias, call.dilation, call.silu)
    return y


def _beyond_taps(call: ShortConvolutionCall) -> str | None:
    """Why C cannot serve one token."""
    if any(each is not None and each.dtype != call.inputs.dtype for each in (call.weight, call.bias)):
        return "its tensors are of several dtypes"
    return beyond_one_token(call) or ("there are no rows" if call.inputs.numel() == 0 else unavailable())


TAPS: Form[ShortConvolutionCall, Tensor] = Form(
    "native_token", _one_token, "one token, depthwise, in C", devices=frozenset({"cpu"}), dtypes=DTYPES,
    gradients="without", compiled=False, transformed=False, serves=_beyond_taps, flops={"weft.native_taps": taps_flops})
"""Of `weft.ops.short_convolution`."""

"""The operations between the products of a step of decoding, in C: norms, rotations, sums and copies of a few numbers.

Each takes less than a microsecond, which is less than PyTorch takes to start an operation; so they pay where a recorded
step runs them in a sequence (`weft.ops.native.sequence`). The sources are `weft/ops/native/token.c` and what it
includes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from weft.ops.few_rows import ROWS, functions, unavailable
from weft.ops.forms import Form, Kernel
from weft.ops.native.library import ADDRESS, COUNT, structure
from weft.ops.native.sequence import CallHeader, NativeCall, alone, failed, written
from weft.ops.norms import LayerNormCall, RMSNormCall
from weft.ops.operator import operator

DTYPES = frozenset({torch.float32, torch.bfloat16})
PART = 8192
"""Numbers of a piece of a sum, as in native/token.h, and the most that are copied in C, by one thread."""
_SHARED = (CallHeader, "shared")
_Norm = structure(_SHARED, (ctypes.c_int, "narrow narrow_scale narrow_bias centred"), (COUNT, "rows width"),
                  (ADDRESS, "x scale bias y"), (ctypes.c_float, "eps"))
_Rotary = structure(_SHARED, (ctypes.c_int, "narrow interleaved"),
                    (COUNT, "batch heads size x_batch x_head cos_batch sin_batch"), (ADDRESS, "x cos sin y"))
_Sum = structure(_SHARED, (ctypes.c_int, "narrow"), (COUNT, "count"), (ADDRESS, "x y z"))
_Copy = structure(_SHARED, (ctypes.c_int, "kind"), (COUNT, "bytes"), (4 * COUNT, "sizes steps to"), (COUNT, "begin"),
                  (ADDRESS, "x y"))
_Lines = structure(_SHARED, (COUNT, "bytes count lines"), (ADDRESS, "at from to"))


def norm_in_c(given: tuple[Tensor, Tensor | None, Tensor | None, float], centred: bool = True) -> Tensor:
    """`native_norm` of vectors, scale, bias and eps."""
    # In a step of one token each call of Python's counts, so there are as few as can be.
    x, scale, bias, eps = given
    x, y, width = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device), x.shape[-1]
    scale, bias = None if scale is None else scale.contiguous(), None if bias is None else bias.contiguous()
    kinds = None if scale is None else scale.dtype, None if bias is None else bias.dtype
    call = _Norm.from_buffer_copy(_norm_of(x.numel() // width, width, x.dtype, *kinds, eps, centred))
    call.x, call.y = x.data_ptr(), y.data_ptr()
    call.scale, call.bias = None if scale is None else scale.data_ptr(), None if bias is None else bias.data_ptr()
    status = alone("weft_norm_call")(1, ctypes.addressof(call))
    if status:
        raise failed(status)
    return y


def _norm(x: Tensor, scale: Tensor | None, bias: Tensor | None, eps: float, centred: bool) -> Tensor:
    return norm_in_c((x, scale, bias, eps), centred)


@lru_cache(maxsize=64)
def _norm_of(rows: int, width: int, x: torch.dtype, scale: torch.dtype | None, bias: torch.dtype | None, eps: float,
             centred: bool) -> Any:
    """The call without its addresses, to be copied: the norms of a model are of one or two kinds."""
    return _Norm(shared=CallHeader(pieces=rows), narrow=x is torch.bfloat16, narrow_scale=scale is torch.bfloat16,
                 narrow_bias=bias is torch.bfloat16, centred=centred, rows=rows, width=width, eps=eps)


def _norm_shape(x: Tensor, scale: Tensor | None, bias: Tensor | None, eps: float, centred: bool) -> Tensor:
    return x.new_empty(x.shape)


native_norm = operator("native_norm", _norm, _norm_shape)
"""scale (x - m) / sqrt(mean((x - m)^2) + eps) + bias of vectors [...,D] in float32 or bfloat16, m the mean of each
where ``centred``, else 0; ``scale`` and ``bias`` in float32 or the dtype of x."""


@written(native_norm)
def _norm_call(y: Tensor, x: Tensor, scale: Tensor | None, bias: Tensor | None, eps: float,
               centred: bool) -> NativeCall | None:
    given = {name: each for name, each in (("x", x), ("scale", scale), ("bias", bias)) if each is not None}
    if not all(each.is_contiguous() for each in given.values()):
        return None
    kinds = None if scale is None else scale.dtype, None if bias is None else bias.dtype
    call = _norm_of(x.numel() // x.shape[-1], x.shape[-1], x.dtype, *kinds, eps, centred)
    return NativeCall("weft_norm_call", _Norm.from_buffer_copy(call), given, ("y",))


def by_element(*_: Any) -> int:
    """Operations of a norm or a rotation, which are not counted: those of matrix products are."""
    return 0


def norm_hindrance(call: tuple[Any, ...]) -> str | None:
    """Why C cannot normalise vectors, in some 40 letters; None where it can.

    Args:
        call: the vectors, the parameters or None in their place, and eps.
    """
    x = call[0]
    for each in call[1:-1]:
        if each is not None and each.dtype is not x.dtype and each.dtype is not torch.float32:
            return "its scale is in another dtype"
    if x.numel() == 0:
        return "there is nothing to normalise"
    return None if not isinstance(functions(), str) else unavailable()


def rotary_in_c(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """The kernel of `native_rotary`."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    x, cos, sin = x if x.stride(-1) == 1 else x.contiguous(), cos.contiguous(), sin.contiguous()
    call = _rotary_of(x, cos, sin, interleaved)
    call.x, call.cos, call.sin, call.y = x.data_ptr(), cos.data_ptr(), sin.data_ptr(), y.data_ptr()
    status = alone("weft_rotary_call")(1, ctypes.addressof(call))
    if status:
        raise failed(status)
    return y


def _rotary_of(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Any:
    """The call without its addresses."""
    batch, _, heads, size = x.shape
    return _Rotary(CallHeader(pieces=batch), x.dtype is torch.bfloat16, interleaved, batch, heads, size, x.stride(0),
                   x.stride(2), cos.stride(0) if cos.shape[0] > 1 else 0, sin.stride(0) if sin.shape[0] > 1 else 0)


def _turned_shape(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    return x.new_empty(x.shape)


native_rotary = operator("native_rotary", rotary_in_c, _turned_shape)
"""One token of every row turned: x [B,1,H,R] in float32 or bfloat16, cos and sin as in `weft.ops.rotary.Turns`."""


@written(native_rotary)
def _rotary_call(y: Tensor, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> NativeCall | None:
    if any(each.stride(-1) != 1 and each.shape[-1] != 1 for each in (x, cos, sin)):
        return None
    return NativeCall("weft_rotary_call", _rotary_of(x, cos, sin, interleaved), {"x": x, "cos": cos, "sin": sin},
                      ("y",))


@written(torch.Tensor.add)
def _sum_call(z: Tensor, x: Any, y: Any, **options: Any) -> NativeCall | None:
    pair = isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape == y.shape and x.dtype is y.dtype
    if options or not pair or x.dtype not in DTYPES or not (x.is_contiguous() and y.is_contiguous()):
        return None
    return NativeCall("weft_sum_call", _Sum(shared=CallHeader(pieces=-(-x.numel() // PART)), count=x.numel(),
                                            narrow=x.dtype is torch.bfloat16), {"x": x, "y": y}, ("z",))


def _four(values: Iterable[int], fill: int) -> Any:
    """The last four dimensions, or all where there are fewer."""
    given = tuple(values)
    return (4 * COUNT)(*(4 - len(given)) * (fill,), *given)


def _copied(y: Tensor, x: Tensor, steps: Sequence[int], begin: int = 0) -> NativeCall:
    """A copy of x, whose numbers lie ``steps`` numbers apart in y, from its ``begin``."""
    kind = 0 if x.dtype is y.dtype else 1 if x.dtype is torch.bfloat16 else 2
    wide, size = y.element_size(), x.element_size()
    return NativeCall("weft_copy_call", _Copy(
        shared=CallHeader(pieces=1), kind=kind, bytes=size, sizes=_four(x.shape, 1),
        steps=_four((size * step for step in x.stride()), 0), to=_four((wide * step for step in steps), 0),
        begin=wide * begin), {"x": x}, ("y",))


@written(torch.Tensor.flatten)
@written(torch.Tensor.reshape)
@written(torch.Tensor.contiguous)
@written(torch.Tensor.clone)
def _copy_call(y: Tensor, x: Tensor, *_: Any, **options: Any) -> NativeCall | None:
    """A call that returns its argument's numbers in their order, where it had to copy them."""
    shared = x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    if options or shared or not y.is_contiguous() or x.dim() > 4 or x.dtype is not y.dtype or x.numel() > PART:
        return None
    return _copied(y, x, [math.prod(x.shape[dim + 1 :]) for dim in range(x.dim())])


@written(torch.Tensor.to)
def _cast_call(y: Tensor, x: Tensor, *_: Any, **options: Any) -> NativeCall | None:
    known = x.dtype in DTYPES and y.dtype in DTYPES and x.dtype is not y.dtype and x.device == y.device
    if not known or not options.keys() <= {"dtype"} or x.dim() > 4 or x.numel() > PART:
        return None
    return _copied(y, x, y.stride())


@written(torch.cat)
def _joined_call(y: Tensor, parts: Sequence[Tensor], dim: int = 0) -> tuple[NativeCall, ...] | None:
    if any(x.dtype is not y.dtype or x.dim() != y.dim() for x in parts) or y.dim() > 4 or y.numel() > PART:
        return None
    at, done = 0, []
    for x in parts:
        done.append(_copied(y, x, y.stride(), at * y.stride(dim)))
        at += x.shape[dim]
    return tuple(done)


@written(torch.Tensor.index_copy_)
def _lines_call(_: Tensor, to: Tensor, dim: int, at: Tensor, source: Tensor) -> NativeCall | None:
    whole = to.is_contiguous() and source.is_contiguous() and at.is_contiguous()
    if dim != 0 or to.dim() != 2 or not whole or to.dtype is not source.dtype or at.dtype is not torch.int64:
        return None
    return NativeCall("weft_lines_call", _Lines(
        shared=CallHeader(pieces=1), bytes=to.shape[1] * to.element_size(), count=len(at), lines=len(to)),
        {"to": to, "at": at, "from": source}, ())


def _rms(call: RMSNormCall) -> Tensor:
    y: Tensor = native_norm(call.x, call.scale, None, call.eps, False)
    return y


def _rms_by_addresses(call: RMSNormCall) -> Tensor:
    return norm_in_c((call.x, call.scale, None, call.eps), False)


def _layer(call: LayerNormCall) -> Tensor:
    y: Tensor = native_norm(*call, True)
    return y


RMS: Form[RMSNormCall, Tensor] = Form(
    "native", _rms, "a few vectors, in C", devices=frozenset({"cpu"}), dtypes=DTYPES, gradients="without",
    compiled=False, transformed=False, serves=norm_hindrance, rows=ROWS, flops={"weft.native_norm": by_element},
    known_as=("c",), kernel=Kernel(_rms_by_addresses, "x", "scale"))
"""Of `weft.ops.norms`."""
LAYER: Form[LayerNormCall, Tensor] = Form(
    "native", _layer, "a few vectors, in C", devices=frozenset({"cpu"}), dtypes=DTYPES, gradients="without",
    compiled=False, transformed=False, serves=norm_hindrance, rows=ROWS, flops={"weft.native_norm": by_element},
    known_as=("c",), kernel=Kernel(norm_in_c, "x", "weight", "bias"))
"""Of `weft.ops.norms`."""

"""Products of a few vectors with a matrix in C, and a whole gated feed-forward: one call each, without gradients.

A step of decoding multiplies each matrix of a model by one vector for every row of the batch, so it takes as long as
reading the matrices does, and as starting each product. The C functions read a matrix as it lies, in float32, in
bfloat16, in whole numbers of eight bits (`weft.ops.int8_linear`) or of four (`weft.ops.int4_linear`), and are called on
PyTorch's threads. Vectors in bfloat16 are multiplied with whole numbers as whole numbers of 16 bits, so that sums are
exact; in float32 the whole numbers become floats. Each sum is taken by one thread in one order, which depends neither
on the other vectors nor on the number of threads, so a row of a batch gets the same bits as the row alone. The sources
are `weft/ops/native/few_rows.c` and what it includes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from weft.core.compiling import compiler_traces, constant_to_compiler
from weft.ops.activations import ActivationName
from weft.ops.forms import Form, Kernel
from weft.ops.linear import LinearCall, same_dtype
from weft.ops.native.library import (
    ADDRESS,
    COUNT,
    Incomplete,
    Missing,
    NativeLibrary,
    code_of,
    instructions,
    loaded,
    structure,
    tiles_expected,
)
from weft.ops.native.sequence import CallHeader, NativeCall, perform, written
from weft.ops.operator import operator

FEW_ROWS = 128 if tiles_expected() else 64
"""Vectors up to which products with matrices in bfloat16 are chosen where no form is named. On an Intel Xeon with tiles
(AMX) PyTorch's product takes 2 times as long at 16 vectors, 1.5 at 64 and 1 at 128. Held to AVX2, which has no
instructions for bfloat16, it takes 3 to 4.5 times as long, and one by way of float32 0.8 times at 64 vectors."""
OTHER_ROWS = 16 if tiles_expected() else 32
"""The same for float32 and whole numbers, where libraries repay a layout of their own for more vectors. On an AMD EPYC
(Zen 3) their product of 24 vectors takes 0.75 (512 x 512) and 1.04 (2048 x 512) times as long."""
ROWS: Mapping[torch.dtype, int] = MappingProxyType({torch.float32: OTHER_ROWS, torch.bfloat16: FEW_ROWS})
KINDS: Mapping[torch.dtype, int] = MappingProxyType(
    {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.uint8: 3})
"""How a matrix is stored, by the dtype of its tensor; as in native/dots.h."""
ACTIVATION_NAMES: Sequence[ActivationName] = ("identity", "relu", "squared_relu", "gelu", "gelu_tanh", "quick_gelu",
                                              "silu", "sigmoid")
"""Non-linearities of gated units that are written in C, in the order of native/few_rows.c."""

_MAP = (ADDRESS, COUNT, ADDRESS, ADDRESS)


@cache
def functions() -> tuple[Any, Any, int | None] | str:
    """The functions in the instruction set of this process, for one product and for a gated unit, and the address of
    what runs them on several threads; or why there are none. It is determined once: reading the environment in every
    step of one token would take as long as a small product."""
    found, library = instructions(), loaded()
    if isinstance(found, Missing):
        return found.short
    assert isinstance(library, NativeLibrary), "there is an instruction set only with a library"
    one, gated = (library.handle[f"weft_{name}_{code_of(found)}"] for name in ("few_rows", "gated"))
    head = (ADDRESS, ctypes.c_uint, ctypes.c_int, ctypes.c_int)
    one.argtypes = (*head, *3 * (COUNT,), ADDRESS, *_MAP, ADDRESS)
    gated.argtypes = (*head, ctypes.c_int, *2 * (ctypes.c_float,), *4 * (COUNT,), ADDRESS, *3 * _MAP, *2 * (ADDRESS,))
    return one, gated, library.parallel


def _no_memory() -> Incomplete:
    return Incomplete("a product in C could not reserve the memory for its vectors. Give it fewer threads or a smaller "
                      "batch.")


def product_in_c(call: tuple[Tensor, Tensor, Tensor | None], scale: Tensor | None = None) -> Tensor:
    """`native_product` of vectors, matrix and bias."""
    # In a step of one token each call of Python's counts, so there are as few as can be.
    x, values, bias = call
    x = x.contiguous()
    inputs, outputs = x.shape[-1], values.shape[0]
    y = x.new_empty((*x.shape[:-1], outputs))
    if scale is not None:
        scale = scale.contiguous()
    if bias is not None:
        bias = bias.contiguous()
    known = functions()
    assert not isinstance(known, str), "the form serves only where there is a library"
    run, _, parallel = known
    if not run(parallel, torch.get_num_threads(), KINDS[values.dtype], x.dtype is torch.bfloat16,
               x.numel() // inputs, inputs, outputs, x.data_ptr(), values.data_ptr(),
               values.stride(0) * values.element_size(), None if scale is None else scale.data_ptr(),
               None if bias is None else bias.data_ptr(), y.data_ptr()):
        raise _no_memory()
    return y


def _product(x: Tensor, values: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    return product_in_c((x, values, bias), scale)


def _product_shape(x: Tensor, values: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], values.shape[0])


def gated_in_c(x: Tensor, gate: Tensor, gate_scale: Tensor | None, gate_bias: Tensor | None, up: Tensor,
               up_scale: Tensor | None, up_bias: Tensor | None, down: Tensor, down_scale: Tensor | None,
               down_bias: Tensor | None, activation: int, limit: float, shift: float) -> Tensor:
    """The kernel of `native_gated`."""
    x = x.contiguous()
    inputs, hidden, outputs = x.shape[-1], gate.shape[0], down.shape[0]
    rows = x.numel() // inputs
    y, between = x.new_empty((*x.shape[:-1], outputs)), x.new_empty((rows, hidden), dtype=torch.float32)
    known = functions()
    assert not isinstance(known, str), "the form serves only where there is a library"
    contiguous, maps = [], []  # copies, if any are made, live as long as the call; and each `Map` of native/few_rows.h
    for values, scale, bias in ((gate, gate_scale, gate_bias), (up, up_scale, up_bias), (down, down_scale, down_bias)):
        scale, bias = None if scale is None else scale.contiguous(), None if bias is None else bias.contiguous()
        contiguous.append((scale, bias))
        maps += [values.data_ptr(), values.stride(0) * values.element_size(),
                 None if scale is None else scale.data_ptr(), None if bias is None else bias.data_ptr()]
    _, run, parallel = known
    if not run(parallel, torch.get_num_threads(), KINDS[gate.dtype], x.dtype is torch.bfloat16, activation, limit,
               shift, rows, inputs, hidden, outputs, x.data_ptr(), *maps, between.data_ptr(), y.data_ptr()):
        raise _no_memory()
    return y


def _gated_shape(x: Tensor, gate: Tensor, gate_scale: Tensor | None, gate_bias: Tensor | None, up: Tensor,
                 up_scale: Tensor | None, up_bias: Tensor | None, down: Tensor, down_scale: Tensor | None,
                 down_bias: Tensor | None, activation: int, limit: float, shift: float) -> Tensor:
    return x.new_empty(*x.shape[:-1], down.shape[0])


native_product = operator("native_product", _product, _product_shape)
"""x W^T + b: x [...,in] in float32 or bfloat16; the matrix as `KINDS` says, and its scales."""


native_gated = operator("native_gated_feed_forward", gated_in_c, _gated_shape)
"""A gated feed-forward; ``activation`` is a place in `ACTIVATION_NAMES`, ``limit`` infinite where there is none."""


_Map = structure((ADDRESS, "values"), (COUNT, "stride"), (ADDRESS, "scale bias"))
_Product = structure((CallHeader, "shared"), (ctypes.c_int, "kind narrow"), (COUNT, "rows inputs outputs"),
                     (ADDRESS, "x"), (_Map, "map"), (ADDRESS, "y"), (COUNT, "piece"))
_Gated = structure((CallHeader, "shared"), (ctypes.c_int, "kind narrow activation"), (ctypes.c_float, "limit shift"),
                   (COUNT, "rows inputs hidden outputs"), (ADDRESS, "x"), (_Map, "gate up down"),
                   (ADDRESS, "between y"), (COUNT, "piece last_piece"))
_Open = structure((CallHeader, "shared"), (ctypes.c_int, "narrow"), (COUNT, "out inputs"), (_Map, "map"),
                  (ADDRESS, "y"))

OPENED = 16
"""Rows of a piece of work; as in native/few_rows.h."""


def _opened(values: Tensor, scale: Tensor, inputs: int, narrow: bool) -> Tensor:
    y, scale = _opened_shape(values, scale, inputs, narrow), scale.contiguous()
    call = _Open(CallHeader(pieces=-(-len(values) // OPENED)), narrow, len(values), inputs,
                 _Map(stride=values.stride(0) * values.element_size()))
    perform(NativeCall("weft_open_call", call, {"map.values": values, "map.scale": scale}, ("y",)), y,
            threads=torch.get_num_threads())
    return y


def _opened_shape(values: Tensor, scale: Tensor, inputs: int, narrow: bool) -> Tensor:
    return scale.new_empty(len(values), inputs, dtype=torch.bfloat16 if narrow else torch.float32)


native_opened = operator("native_opened", _opened, _opened_shape)
"""A matrix of four bits [out,16 groups] with its scales [out,groups] as floats [out,in]: in float32, or rounded to
bfloat16 where ``narrow``."""


def _piece_of(outputs: int) -> int:
    """Rows of a matrix that a thread takes at a time, as in native/few_rows.c."""
    return min(128, -(-(outputs // (8 * torch.get_num_threads()) + 1) // 16) * 16)


def _map(name: str, values: Tensor, scale: Tensor | None, bias: Tensor | None) -> tuple[Any, dict[str, Tensor]] | None:
    """A matrix in a sequence, and the tensors whose addresses it holds."""
    if any(each is not None and not each.is_contiguous() for each in (scale, bias)):
        return None
    named = {f"{name}.values": values, f"{name}.scale": scale, f"{name}.bias": bias}
    return _Map(stride=values.stride(0) * values.element_size()), {
        key: each for key, each in named.items() if each is not None}


@written(native_product)
def _product_call(y: Tensor, x: Tensor, values: Tensor, scale: Tensor | None, bias: Tensor | None) -> NativeCall | None:
    found = _map("map", values, scale, bias)
    if found is None or not x.is_contiguous():
        return None
    outputs = values.shape[0]
    return NativeCall("weft_product_call", _Product(
        CallHeader(pieces=outputs), KINDS[values.dtype], x.dtype is torch.bfloat16, x.numel() // x.shape[-1],
                                                    x.shape[-1],
        outputs, map=found[0], piece=_piece_of(outputs)), {"x": x} | found[1], ("y",))


@written(native_gated)
def _gated_call(y: Tensor, x: Tensor, *rest: Any) -> NativeCall | None:
    maps = [_map(name, *rest[3 * place : 3 * place + 3]) for place, name in enumerate(("gate", "up", "down"))]
    if not x.is_contiguous() or maps[0] is None or maps[1] is None or maps[2] is None:
        return None
    activation, limit, shift = rest[9:]
    rows, hidden, outputs = x.numel() // x.shape[-1], rest[0].shape[0], rest[6].shape[0]
    between = torch.empty(rows, hidden)
    return NativeCall("weft_gated_call", _Gated(
        CallHeader(pieces=outputs), KINDS[rest[0].dtype], x.dtype is torch.bfloat16, activation, limit, shift, rows,
        x.shape[-1], hidden, outputs, None, *(each[0] for each in maps if each), piece=_piece_of(hidden),
        last_piece=_piece_of(outputs)),
        {"x": x, "between": between} | maps[0][1] | maps[1][1] | maps[2][1], ("y",), (between,))


def gated_flops(x: Tensor, gate: Tensor, gate_scale: Tensor | None, gate_bias: Tensor | None, up: Tensor,
                up_scale: Tensor | None, up_bias: Tensor | None, down: Tensor, *_: Any) -> int:
    """Operations of the three products."""
    return 2 * (x.numel() // x.shape[-1]) * gate.shape[0] * (2 * x.shape[-1] + down.shape[0])


def product_flops(x: Tensor, values: Tensor, *_: Any) -> int:
    """Operations of a product."""
    return 2 * x.numel() * values.shape[0]


@constant_to_compiler
def unavailable() -> str | None:
    """Why there is nothing in C, in some 40 letters; None where there is."""
    found = functions()
    return found if isinstance(found, str) else None


def native_hindrance(x: Tensor, values: Tensor, inputs: int, bias: Tensor | None = None) -> str | None:
    """Why C cannot multiply these vectors by this matrix, in some 40 letters; None where it can.

    Args:
        x: [...,in].
        values: the matrix [out,...], of one of the dtypes of `KINDS`.
    """
    if bias is not None and bias.dtype != x.dtype:
        return "vectors and bias differ in dtype"
    if values.stride(-1) != 1 and values.shape[-1] != 1:
        return "the matrix lies column by column"
    if x.numel() == 0 or inputs == 0 or values.shape[0] == 0:
        return "there is nothing to multiply"
    return None if not isinstance(functions(), str) else unavailable()


def many_rows(x: Tensor, stored: torch.dtype) -> str | None:
    """Why such products do not pay for ``x`` and matrices in ``stored``."""
    most = FEW_ROWS if stored is torch.bfloat16 else OTHER_ROWS
    return None if x.numel() <= most * x.shape[-1] else f"more than {most} rows"


def _linear(call: LinearCall) -> Tensor:
    y: Tensor = native_product(call.x, call.weight, None, call.bias)
    return y


def _linear_hindrance(call: LinearCall) -> str | None:
    x, weight, bias = call
    # The usual case of both rules below, written out: a step of one token asks this for every map.
    if (not compiler_traces() and x.dtype is weight.dtype and (bias is None or bias.dtype is x.dtype)
            and weight.is_contiguous() and x.numel() and weight.numel() and not isinstance(functions(), str)
            and not torch.is_autocast_enabled(x.device.type)):
        return None
    return same_dtype(call) or native_hindrance(x, weight, weight.shape[1], bias)


FORM: Form[LinearCall, Tensor] = Form(
    "native", _linear, "a few vectors, the matrix read once, in C", devices=frozenset({"cpu"}),
    dtypes=frozenset({torch.float32, torch.bfloat16}), gradients="without", compiled=False, transformed=False,
    serves=_linear_hindrance, rows=ROWS, flops={"weft.native_product": product_flops}, known_as=("c", "few_rows"),
    kernel=Kernel(product_in_c, "x", "weight", "bias"))
"""Of `weft.ops.linear`."""

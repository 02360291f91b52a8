"""Products with a matrix of 4-bit integers and one scale for each group of 32 inputs: 4.5 bits an entry, an eighth of
float32's bytes with a little more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import BFloat16, Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from weft.ops.few_rows import OTHER_ROWS, native_hindrance, native_opened, native_product, product_in_c
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Kernel, Make, Operation
from weft.ops.linear import LINEAR, LinearCall, stored_token

GROUP = 32
"""Inputs that share a scale; as in native/dots.h."""
LEAST, LARGEST = -8, 7
"""The integers."""
FARTHEST = 1.02
"""By how many steps an entry may be off: half a step between the integers, and up to one step beyond the last, with the
rounding of the scale to eight bits."""


class Int4Call(NamedTuple):
    """x W^T with W[o, i] = scale[o, i // 32] q[o, i]. Of each group of 32 inputs, byte i of 16 holds q + 8 of input i
    in its lower half and of input i + 16 in its upper; inputs beyond the last count as zeros."""

    x: Float[Tensor, "... in"]
    values: UInt8[Tensor, "out 16*groups"]
    scale: BFloat16[Tensor, "out groups"]


def four_bits(weight: Float[Tensor, "out in"]) -> tuple[UInt8[Tensor, "out 16*groups"], BFloat16[Tensor, "out groups"]]:
    """The integers and scales of a matrix, as an `Int4Call` holds them.

    The range of the integers has one more below zero than above. So for each group two scales are tried, one by which
    its entry farthest from zero becomes -8 and one by which it becomes 7 or -7, and the one with the smaller sum of
    squared errors is taken.
    """
    wide = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    grouped = F.pad(wide, (0, -wide.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
    farthest = grouped.gather(2, grouped.abs().argmax(2, keepdim=True))
    tried = [_rounded(grouped, scale) for scale in (farthest / LEAST, farthest.abs() / LARGEST)]
    worse = tried[0][2] > tried[1][2]
    q, scale = (torch.where(worse, b, a) for a, b in zip(tried[0][:2], tried[1][:2], strict=True))
    lower, upper = (q - LEAST).to(torch.uint8).split(GROUP // 2, 2)
    return (lower | upper << 4).flatten(1), scale.squeeze(2)


def _rounded(grouped: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Integers, scales in bfloat16 and the sum of squared errors of each group."""
    narrow = scale.to(torch.bfloat16)
    narrow = torch.where(narrow == 0, torch.ones_like(narrow), narrow)
    step = narrow.to(grouped.dtype)
    q = (grouped / step).round().clamp(LEAST, LARGEST)
    return q, narrow, (q * step - grouped).square().sum(2, keepdim=True)


def integers(values: UInt8[Tensor, "... 16*groups"]) -> Tensor:
    """q as int8 [...,groups,32]."""
    grouped = values.unflatten(-1, (-1, GROUP // 2))
    return torch.cat([grouped & 15, grouped >> 4], -1).to(torch.int8) + LEAST


def matrix(values: UInt8[Tensor, "*out 16*groups"], scale: BFloat16[Tensor, "*out groups"], inputs: int,
           dtype: torch.dtype) -> Float[Tensor, "*out in"]:
    """W in a dtype of floats; in float32 and wider it is exact."""
    return (integers(values).to(dtype) * scale.to(dtype)[..., None]).flatten(-2)[..., :inputs]


def int4_linear(x: Float[Tensor, "... in"], values: UInt8[Tensor, "out 16*groups"],
                scale: BFloat16[Tensor, "out groups"]) -> Float[Tensor, "... out"]:
    """x W^T in the dtype of ``x``."""
    return INT4_LINEAR(Int4Call(x, values, scale))


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _of(call: Int4Call) -> Tensor:
    return matrix(call.values, call.scale, call.x.shape[-1], _wide(call.x))


def _written_out(call: Int4Call) -> Tensor:
    return F.linear(call.x.to(_wide(call.x)), _of(call)).to(call.x.dtype)


def _lean(call: Int4Call) -> Tensor:
    y: Tensor = _Int4Product.apply(call.x, call.values, call.scale)  # type: ignore[no-untyped-call]
    return y


class _Int4Product(torch.autograd.Function):
    """x W^T, which keeps the integers for its backward pass, and not W as floats."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(values, scale)
        ctx.inputs = x.shape[-1]
        return _written_out(Int4Call(x, values, scale))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        values, scale = ctx.saved_tensors
        return (dy.to(_wide(dy)) @ matrix(values, scale, ctx.inputs, _wide(dy))).to(dy.dtype), None, None


def _native(call: Int4Call) -> Tensor:
    y: Tensor = native_product(call.x, call.values, call.scale, None)
    return y


def _by_addresses(call: Int4Call) -> Tensor:
    return product_in_c((call.x, call.values, None), call.scale)


def _in_c(call: Int4Call) -> str | None:
    return native_hindrance(call.x, call.values, call.x.shape[-1])


def _opened(call: Int4Call) -> Tensor:
    weight = native_opened(call.values, call.scale, call.x.shape[-1], call.x.dtype is torch.bfloat16)
    return LINEAR(LinearCall(call.x, weight))


def _one_token(call: Int4Call) -> Tensor:
    y = (_of(call) * stored_token(call.x, _wide(call.x))).sum(-1)
    return y.to(call.x.dtype).reshape(*call.x.shape[:-1], call.values.shape[0])


def _of_one(call: Int4Call) -> str | None:
    return None if call.x.numel() == call.x.shape[-1] else "it takes a single vector"


def _examples(make: Make) -> Iterator[Int4Call]:
    for rows in ((2, 3), (1, 1), (0,)):
        for size in (4 * GROUP, 5 * GROUP + 7):
            yield Int4Call(make(*rows, size), *four_bits(make(9, size)))


INT4_LINEAR = OPERATIONS.add(Operation(
    "int4_linear", "x W^T, with W in whole numbers of four bits, scaled by groups",
    Form(REFERENCE, _written_out, "integers converted to floats, then a product"),
    Form("one_token", _one_token, "one vector times the matrix, as one loop", devices=frozenset({"cpu"}),
         serves=_of_one, eager=False),
    Form("native", _native, "a few vectors, the matrix read once, in C", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.float32, torch.bfloat16}), gradients="without", compiled=False, transformed=False,
         serves=_in_c, rows=OTHER_ROWS, known_as=("c", "few_rows"),
         kernel=Kernel(_by_addresses, "x", "values", "scale")),
    Form("opened", _opened, "converted to floats in C, then a product of floats", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.float32, torch.bfloat16}), gradients="without", compiled=False, transformed=False,
         serves=_in_c),
    Form("lean", _lean, "converted to floats, again in backward", gradients="with", transformed=False),
    subject="x", examples=_examples, known_as=("q4", "four_bits", "int4")))

"""Products with a matrix of 8-bit integers and one scale for each of its rows: a quarter of float32's bytes, half of
bfloat16's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int8
from torch import Tensor
from torch.nn import functional as F

from weft.ops.few_rows import OTHER_ROWS as NATIVE_ROWS
from weft.ops.few_rows import native_hindrance, native_product, product_in_c
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Kernel, Make, Operation
from weft.ops.linear import stored_token
from weft.ops.operator import operator

LARGEST = 127
"""The largest integer of a matrix; -128 is left out, so that the range is symmetric."""

BLOCK = 16
"""Inputs that PyTorch's product takes at a time."""

FEW_ROWS = 32
"""Rows up to which PyTorch's product with int8 weights is the faster one in bfloat16. It reads fewer bytes but
multiplies more slowly; converting the matrix to floats costs the same for any number of rows. In float32 PyTorch 2.13
has no vectorised kernel: 512 x 512 weights take 3 times as long as converted ones for one row, 38 times for 64."""


class Int8Call(NamedTuple):
    """s * (x Q^T); s has one number for each output, in float32 or wider."""

    x: Float[Tensor, "... in"]
    values: Int8[Tensor, "out in"]
    scale: Float[Tensor, " out"]


def quantised(weight: Float[Tensor, "out in"]) -> tuple[Int8[Tensor, "out in"], Float[Tensor, " out"]]:
    """Integers q and scales s with |w - s q| <= s / 2, where s is the largest entry of a row over 127."""
    wide = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    largest = wide.abs().amax(1) if wide.shape[1] else wide.new_zeros(wide.shape[0])
    scale = torch.where(largest > 0, largest / LARGEST, 1.0)
    return (wide / scale[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


def int8_linear(x: Float[Tensor, "... in"], values: Int8[Tensor, "out in"],
                scale: Float[Tensor, " out"]) -> Float[Tensor, "... out"]:
    """s * (x Q^T), in the dtype of ``x``. The integers are exact in every dtype; the product is rounded before and
    after it is scaled."""
    return INT8_LINEAR(Int8Call(x, values, scale))


def _scaled(y: Tensor, scale: Tensor, x: Tensor) -> Tensor:
    return (y * scale).to(x.dtype)


def _written_out(call: Int8Call) -> Tensor:
    return _scaled(F.linear(call.x, call.values.to(call.x.dtype)), call.scale, call.x)


def _lean(call: Int8Call) -> Tensor:
    product: Tensor = _Int8Product.apply(call.x, call.values)  # type: ignore[no-untyped-call]
    return _scaled(product, call.scale, call.x)


class _Int8Product(torch.autograd.Function):
    """x Q^T, which keeps Q for its backward pass, and not Q converted to floats."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return F.linear(x, values.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        values, = ctx.saved_tensors
        return dy @ values.to(dy.dtype), None


def _packed(call: Int8Call) -> Tensor:
    rows = call.x.reshape(-1, call.x.shape[-1])
    return _scaled(_product(rows, call.values).view(*call.x.shape[:-1], call.values.shape[0]), call.scale, call.x)


def _kernel(x: Tensor, values: Tensor) -> Tensor:
    return torch._weight_int8pack_mm(x.contiguous(), values.contiguous(), x.new_ones(values.shape[0]))


def _shapes(x: Tensor, values: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], values.shape[0])


_product = operator("int8_product", _kernel, _shapes)


def _native(call: Int8Call) -> Tensor:
    y: Tensor = native_product(call.x, call.values, call.scale, None)
    return y


def _by_addresses(call: Int8Call) -> Tensor:
    return product_in_c((call.x, call.values, None), call.scale)


def _in_c(call: Int8Call) -> str | None:
    if call.scale.dtype != torch.float32:
        return "its scales are not in float32"
    return native_hindrance(call.x, call.values, call.values.shape[1])


def _one_token(call: Int8Call) -> Tensor:
    wide = torch.promote_types(call.x.dtype, torch.float32)
    y = (call.values.to(wide) * stored_token(call.x, wide)).sum(-1)
    return _scaled(y, call.scale, call.x).reshape(*call.x.shape[:-1], call.values.shape[0])


def _of_one(call: Int8Call) -> str | None:
    return None if call.x.numel() == call.x.shape[-1] else "it takes a single vector"


def _whole_blocks(call: Int8Call) -> str | None:
    # For other numbers of inputs torch 2.13 reads beyond the rows in bfloat16, up to a segmentation fault.
    return None if call.values.shape[1] % BLOCK == 0 else f"inputs are no multiple of {BLOCK}"


def _examples(make: Make) -> Iterator[Int8Call]:
    for rows in ((2, 3), (1, 1), (0,)):
        for size in (2 * BLOCK, BLOCK + 1):
            yield Int8Call(make(*rows, size), *quantised(make(7, size)))


INT8_LINEAR = OPERATIONS.add(Operation(
    "int8_linear", "x Q^T, each output scaled, with Q in whole numbers of eight bits",
    Form(REFERENCE, _written_out, "integers converted to floats, then a product"),
    Form("one_token", _one_token, "one vector times the matrix, as one loop", devices=frozenset({"cpu"}),
         serves=_of_one, eager=False),
    Form("native", _native, "a few vectors, the matrix read once, in C", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.float32, torch.bfloat16}), gradients="without", compiled=False, transformed=False,
         serves=_in_c, rows=NATIVE_ROWS, known_as=("c", "few_rows"),
         kernel=Kernel(_by_addresses, "x", "values", "scale")),
    Form("packed", _packed, "PyTorch's product with int8 weights",
         devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32, torch.bfloat16, torch.float16}),
         gradients="without", transformed=False, pays_for=frozenset({torch.bfloat16}), serves=_whole_blocks,
         rows=FEW_ROWS),
    Form("lean", _lean, "converted to floats, again in backward",
         gradients="with", transformed=False),
    subject="x", examples=_examples, known_as=("quantised", "quantized", "int8")))

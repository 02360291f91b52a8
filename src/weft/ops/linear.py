"""A linear map, y = x W^T + b, and the forms that compute it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.core.compiling import compiler_traces
from weft.ops.few_rows import FEW_ROWS as NATIVE_ROWS
from weft.ops.few_rows import functions, native_hindrance, native_product, product_flops, product_in_c
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Kernel, Make, Operation
from weft.ops.routed_linear import backward_flops, flops, routed_linear
from weft.ops.routes import ROUTING
from weft.ops.wide_linear import wide_linear, widens

FEW_ROWS = 16
"""Rows up to which an emulated product is cheaper than a wide one. The emulation takes three times as long for each
multiplication; converting the matrix to float32 writes and reads four bytes per number beside the two that are read
anyway, once for all rows. Where gradients are recorded the backward pass converts it again in any case."""


class LinearCall(NamedTuple):
    """x W^T + b, of one dtype."""

    x: Float[Tensor, "... in"]
    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None = None


class Map(NamedTuple):
    """A linear map: its matrix as floats [out,in], or as the integers and scales of products in few bits
    (`weft.ops.int8_linear`, `weft.ops.int4_linear`), told apart by dtype; and its bias."""

    values: Tensor
    scale: Tensor | None = None
    bias: Float[Tensor, " out"] | None = None


def linear(x: Float[Tensor, "... in"], weight: Float[Tensor, "out in"],
           bias: Float[Tensor, " out"] | None = None) -> Float[Tensor, "... out"]:
    """x W^T + b."""
    return LINEAR(LinearCall(x, weight, bias))


def _written_out(call: LinearCall) -> Tensor:
    y = call.x @ call.weight.t()
    return y if call.bias is None else y + call.bias


def _library(call: LinearCall) -> Tensor:
    return F.linear(call.x, call.weight, call.bias)


def _wide(call: LinearCall) -> Tensor:
    return wide_linear(call.x, call.weight, call.bias)


def _routed(call: LinearCall) -> Tensor:
    y: Tensor = routed_linear(*call)
    return y


def _native(call: LinearCall) -> Tensor:
    y: Tensor = native_product(call.x, call.weight, None, call.bias)
    return y


def _in_c(call: LinearCall) -> str | None:
    x, weight, bias = call
    # The usual case of both rules below, written out: a step of one token asks this for every map.
    if (not compiler_traces() and x.dtype is weight.dtype and (bias is None or bias.dtype is x.dtype)
            and weight.is_contiguous() and x.numel() and weight.numel() and not isinstance(functions(), str)
            and not torch.is_autocast_enabled(x.device.type)):
        return None
    return _same_dtype(call) or native_hindrance(x, weight, weight.shape[1], bias)


def _same_dtype(call: LinearCall) -> str | None:
    if torch.is_autocast_enabled(call.x.device.type):
        return "autocast is on"
    return None if call.x.dtype == call.weight.dtype else "vectors and matrix differ in dtype"


def _one_token(call: LinearCall) -> Tensor:
    wide = torch.promote_types(call.x.dtype, torch.float32)
    y = (call.weight.to(wide) * stored_token(call.x, wide)).sum(-1)
    y = y if call.bias is None else y + call.bias.to(wide)
    return y.to(call.x.dtype).reshape(*call.x.shape[:-1], call.weight.shape[0])


def stored_token(x: Float[Tensor, "... in"], dtype: torch.dtype) -> Float[Tensor, "1 in"]:
    """One vector, for a product that the compiler writes as one loop. The view by strides makes the compiler store the
    vector; it would otherwise fuse what computes the vector into the loop and repeat it for every output."""
    return x.reshape(-1).to(dtype).contiguous().as_strided((1, x.shape[-1]), (x.shape[-1], 1))


def _of_one(call: LinearCall) -> str | None:
    return None if call.x.numel() == call.x.shape[-1] else "it takes a single vector"


def _emulated(call: LinearCall) -> str | None:
    if not widens(call.x):
        return "the processor has instructions for the dtype"
    rows = call.x.numel() // max(1, call.x.shape[-1])
    return None if torch.is_grad_enabled() or rows > FEW_ROWS else f"at most {FEW_ROWS} rows"


def _examples(make: Make) -> Iterator[LinearCall]:
    yield LinearCall(make(2, 3, 5), make(7, 5), make(7))
    yield LinearCall(make(1, 1, 5), make(7, 5))
    yield LinearCall(make(0, 5), make(7, 5), make(7))


LINEAR = OPERATIONS.add(Operation(
    "linear", "x W^T + b",
    Form(REFERENCE, _written_out, "a product and a sum"),
    # The compiler makes one loop of it, which reads the matrix once and as it is; libraries lay out and widen narrow
    # matrices for products of many rows.
    Form("one_token", _one_token, "one vector times the matrix, as one loop", devices=frozenset({"cpu"}),
         serves=_of_one, eager=False, known_as=("gemv", "vector")),
    Form("native", _native, "a few vectors, the matrix read once, in C", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.float32, torch.bfloat16}), gradients="without", compiled=False, transformed=False,
         serves=_in_c, rows=NATIVE_ROWS, flops={"weft.native_product": product_flops}, known_as=("c", "few_rows"),
         kernel=Kernel(product_in_c, "x", "weight", "bias")),
    Form("routed", _routed, "each product by its fastest measured library", transformed=False,
         devices=frozenset({"cpu"}), serves=_same_dtype, offer=ROUTING.offer,
         flops={"weft.linear": flops, "weft.linear_backward": backward_flops}),
    Form("wide", _wide, "products in float32, each rounded once", devices=frozenset({"cpu"}),
         pays_for=frozenset({torch.bfloat16}), transformed=False, worth=_emulated),
    Form("library", _library, "PyTorch's own", known_as=("torch", "default")),
    subject="x", examples=_examples, known_as=("projection",)))

"""A linear map, y = x W^T + b, and the forms that compute it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation


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


def same_dtype(call: LinearCall) -> str | None:
    """Why a form whose tensors are of one dtype cannot serve."""
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


def _examples(make: Make) -> Iterator[LinearCall]:
    yield LinearCall(make(2, 3, 5), make(7, 5), make(7))
    yield LinearCall(make(1, 1, 5), make(7, 5))
    yield LinearCall(make(0, 5), make(7, 5), make(7))


LINEAR = OPERATIONS.add(Operation(
    "linear", "x W^T + b",
    Form(REFERENCE, _written_out, "a product and a sum"),
    # The compiler makes one loop of it, which reads the matrix once and as it is; libraries lay out and widen narrow
    # matrices for products of many rows.
    Form("one_token", _one_token, "one vector times the matrix, as one loop", devices=frozenset({"cpu", "cuda"}),
         serves=_of_one, eager=False, known_as=("gemv", "vector")),
    LateForm("native", "weft.ops.few_rows.FORM"), LateForm("routed", "weft.ops.routed_linear.FORM"),
    LateForm("wide", "weft.ops.wide_linear.FORM"),
    Form("library", _library, "PyTorch's own", known_as=("torch", "default")),
    subject="x", examples=_examples, known_as=("projection",)))

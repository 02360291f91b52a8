"""A linear map, y = x W^T + b, and the ways to multiply it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.wide_linear import wide_linear, widens


class LinearCall(NamedTuple):
    """x W^T + b, of one dtype."""

    x: Float[Tensor, "... in"]
    weight: Float[Tensor, "out in"]
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


def _imitated(call: LinearCall) -> str | None:
    return None if widens(call.x) else "this processor multiplies the dtype itself"


def _examples(make: Make) -> Iterator[LinearCall]:
    yield LinearCall(make(2, 3, 5), make(7, 5), make(7))
    yield LinearCall(make(1, 1, 5), make(7, 5))
    yield LinearCall(make(0, 5), make(7, 5), make(7))


LINEAR = OPERATIONS.add(Operation(
    "linear", "x W^T + b",
    Form(REFERENCE, _written_out, "a product and a sum"),
    Form("library", _library, "PyTorch's own, by the library that it chooses", known_as=("torch", "default")),
    Form("wide", _wide, "the products of bfloat16 numbers in float32, each rounded once", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.bfloat16}), worth=_imitated),
    subject="x", examples=_examples, known_as=("matmul", "projection", "gemm")))

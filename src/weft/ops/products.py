"""The three matrix products of a linear map, each by the library that was measured to be the fastest for its shape.

    forward   y  = x W^T + b      [rows, in] and [out, in] to [rows, out]
    input     dx = dy W           [rows, out] and [out, in] to [rows, in]
    weight    dW = dy^T x         [rows, out] and [rows, in] to [out, in]

Which library is the fastest depends on the processor, the shape, the dtype and the layout, so it is measured
(`weft.analysis.matmul`) and recorded with the run. A product that was not measured takes the route of the same map with
the nearest number of rows, or PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.linear import ONEDNN, ROUTING, SWITCHED, UNMEASURED, WIDE, Product, Which
from weft.ops.wide_linear import wide_product


class ProductCall(NamedTuple):
    """a @ b, and ``bias`` added to every row; ``product`` says which product of a linear map it is."""

    a: Float[Tensor, "M K"]
    b: Float[Tensor, "K N"]
    bias: Float[Tensor, " N"] | None
    product: Product


@contextmanager
def fp32_precision(precision: str) -> Iterator[None]:
    """Inside, oneDNN's setting for float32 products is ``precision``; afterwards it is what it was.

    "bf16" allows oneDNN to round the factors to bfloat16. On processors without AMX it has no such kernel and
    multiplies in full float32, faster than the default library there; whether it rounds is measured before it is used.
    """
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = precision
    try:
        yield
    finally:
        matmul.fp32_precision = before


def forward_product(x: Float[Tensor, "rows in"], weight: Float[Tensor, "out in"],
                    bias: Float[Tensor, " out"] | None) -> Float[Tensor, "rows out"]:
    """x W^T + b."""
    return _multiplied(ProductCall(x, weight.t(), bias, _named("forward", x, weight)))


def input_product(dy: Float[Tensor, "rows out"], weight: Float[Tensor, "out in"]) -> Float[Tensor, "rows in"]:
    """dy W."""
    return _multiplied(ProductCall(dy, weight, None, _named("input", dy, weight)))


def weight_product(dy: Float[Tensor, "rows out"], x: Float[Tensor, "rows in"]) -> Float[Tensor, "out in"]:
    """dy^T x."""
    name = Product("weight", x.shape[0], x.shape[1], dy.shape[1], str(x.dtype))
    return _multiplied(ProductCall(dy.t(), x, None, name))


def _multiplied(call: ProductCall) -> Tensor:
    """One product, without recording: it is part of an operator that has a backward pass of its own, inside which
    recording is still on."""
    with torch.no_grad():
        return PRODUCT(call)


def _named(which: Which, rows: Tensor, weight: Tensor) -> Product:
    return Product(which, rows.shape[0], weight.shape[1], weight.shape[0], str(rows.dtype))


def _library(call: ProductCall) -> Tensor:
    return call.a @ call.b if call.bias is None else torch.addmm(call.bias, call.a, call.b)


def _onednn(call: ProductCall) -> Tensor:
    # It takes the second matrix as the weight of a linear map, transposed.
    y: Tensor = torch.ops.mkldnn._linear_pointwise(call.a, call.b.t(), call.bias, "none", [], "")
    return y


def _switched(call: ProductCall) -> Tensor:
    with fp32_precision("bf16"):
        return _library(call)


def _by_widening(call: ProductCall) -> Tensor:
    return wide_product(call.a, call.b, call.bias)


@cache
def _multiplies_bfloat16() -> bool:
    supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return supported


def _built(call: ProductCall) -> str | None:
    if not torch.backends.mkldnn.is_available():
        return "PyTorch is built without oneDNN"
    if call.a.dtype == torch.bfloat16 and not _multiplies_bfloat16():
        return "oneDNN has no product in bfloat16 for this processor's instructions"
    return None if call.a.numel() and call.b.numel() else "a matrix is empty"


def _own(call: ProductCall) -> str | None:
    return _route(call, ONEDNN)


def _by_switch(call: ProductCall) -> str | None:
    return _route(call, SWITCHED)


def _wider(call: ProductCall) -> str | None:
    return _route(call, WIDE)


def _route(call: ProductCall, name: str) -> str | None:
    if ROUTING.routes is None:
        return UNMEASURED
    return None if ROUTING.routes.of(call.product) == name else "another was faster for this shape"


def _examples(make: Make) -> Iterator[ProductCall]:
    for rows in (0, 1, 33):
        x, weight, dy = make(rows, 6), make(5, 6), make(rows, 5)
        yield ProductCall(x, weight.t(), make(5), _named("forward", x, weight))
        yield ProductCall(dy, weight, None, _named("input", dy, weight))
        yield ProductCall(dy.t(), x, None, Product("weight", rows, 6, 5, str(x.dtype)))


PRODUCT = OPERATIONS.add(Operation(
    "product", "the matrix products of a linear map and of its backward pass",
    Form(REFERENCE, _library, "PyTorch's own", known_as=("default", "mkl")),
    Form(ONEDNN, _onednn, "oneDNN's own call", devices=frozenset({"cpu"}), gradients="without",
         dtypes=frozenset({torch.float32, torch.bfloat16}), transformed=False, serves=_built, worth=_own,
         known_as=("mkldnn",)),
    Form(SWITCHED, _switched, "PyTorch's own, set to oneDNN", devices=frozenset({"cpu"}), compiled=False,
         dtypes=frozenset({torch.float32}), gradients="without", transformed=False, serves=_built, worth=_by_switch),
    Form(WIDE, _by_widening, "in float32, rounded once", devices=frozenset({"cpu"}), gradients="without",
         dtypes=frozenset({torch.bfloat16}), transformed=False, worth=_wider, known_as=("float32",)),
    subject="a", examples=_examples, known_as=("matmul", "mm", "gemm")))

"""The three matrix products of a linear map, by the library that was the fastest for their shapes.

    forward   y  = x W^T + b      [rows, in] and [out, in] to [rows, out]
    input     dx = dy W           [rows, out] and [out, in] to [rows, in]
    weight    dW = dy^T x         [rows, out] and [rows, in] to [out, in]

Which library is the fastest depends on the processor, the shape, the dtype and the layout, so it is measured
(`weft.analysis.matmul`) and kept with what is computed. Products that were not measured take the route of the nearest
number of rows of the same map, or PyTorch's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.operator import Offer

Which = Literal["forward", "input", "weight"]
ONEDNN, SWITCHED = "onednn", "switched"
UNMEASURED = "no products have been measured"


class Product(NamedTuple):
    """One product of a linear map from ``inputs`` to ``outputs`` features; ``dtype`` as PyTorch prints it."""

    which: Which
    rows: int
    inputs: int
    outputs: int
    dtype: str

    def flops(self) -> int:
        """Operations, a multiplication and an addition being two."""
        return 2 * self.rows * self.inputs * self.outputs

    def __str__(self) -> str:
        return f"{self.which} {self.rows}x{self.inputs}x{self.outputs} {self.dtype.removeprefix('torch.')}"

    @staticmethod
    def parse(text: str) -> Product:
        """What `str` wrote.

        Raises:
            ValueError: it is something else.
        """
        which, shape, dtype = text.split(" ")
        rows, inputs, outputs = map(int, shape.split("x"))
        if which not in ("forward", "input", "weight"):
            raise ValueError(which)
        return Product(which, rows, inputs, outputs, f"torch.{dtype}")  # type: ignore[arg-type]


class ProductCall(NamedTuple):
    """a @ b, and ``bias`` added to every row; ``product`` says which product of a linear map it is."""

    a: Float[Tensor, "M K"]
    b: Float[Tensor, "K N"]
    bias: Float[Tensor, " N"] | None
    product: Product


@final
class Routes:
    """The route of every product that was measured, and ``otherwise`` that of the others."""

    def __init__(self, known: Mapping[Product, str], otherwise: str) -> None:
        self.known, self.otherwise = dict(known), otherwise
        self._found = dict(known)

    def of(self, product: Product) -> str:
        """The route of a product: its own, or that of the nearest rows of the same map."""
        found = self._found.get(product)
        if found is None:
            same = [each for each in self.known if each._replace(rows=0) == product._replace(rows=0)]
            nearest = min(same, key=lambda each: abs(math.log(max(each.rows, 1) / max(product.rows, 1))), default=None)
            found = self._found[product] = self.otherwise if nearest is None else self.known[nearest]
        return found


@final
class _Routing:
    """The routes in force, in the whole process."""

    def __init__(self) -> None:
        self.routes: Routes | None = None
        self.offer = Offer(UNMEASURED)


ROUTING = _Routing()


@contextmanager
def routed(known: Mapping[Product, str], *, otherwise: str | None = None) -> Iterator[None]:
    """Inside, products take these routes, and ``otherwise`` those of maps that were not measured (None: PyTorch's own
    choice)."""
    before = ROUTING.routes
    _take(Routes(known, REFERENCE if otherwise is None else otherwise))
    try:
        yield
    finally:
        _take(before)


def _take(routes: Routes | None) -> None:
    ROUTING.routes = routes
    ROUTING.offer.why_not = UNMEASURED if routes is None else None


@contextmanager
def fp32_precision(precision: str) -> Iterator[None]:
    """oneDNN's setting for float32 products, and what it was before afterwards."""
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
    """Products are made inside operators, which have gradients of their own and leave it switched on that they are
    recorded."""
    with torch.no_grad():
        return PRODUCT(call)


def _named(which: Which, rows: Tensor, weight: Tensor) -> Product:
    return Product(which, rows.shape[0], weight.shape[1], weight.shape[0], str(rows.dtype))


def _library(call: ProductCall) -> Tensor:
    return call.a @ call.b if call.bias is None else torch.addmm(call.bias, call.a, call.b)


def _onednn(call: ProductCall) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(call.a, call.b.t(), call.bias, "none", [], "")
    return y


def _switched(call: ProductCall) -> Tensor:
    with fp32_precision("bf16"):
        return _library(call)


def _built(call: ProductCall) -> str | None:
    if not torch.backends.mkldnn.is_available():
        return "this PyTorch is built without oneDNN"
    return None if call.a.numel() and call.b.numel() else "oneDNN multiplies no empty matrices"


def _own(call: ProductCall) -> str | None:
    return _route(call, ONEDNN)


def _by_switch(call: ProductCall) -> str | None:
    return _route(call, SWITCHED)


def _route(call: ProductCall, name: str) -> str | None:
    if ROUTING.routes is None:
        return UNMEASURED
    return None if ROUTING.routes.of(call.product) == name else "another route was faster for its shape"


def _examples(make: Make) -> Iterator[ProductCall]:
    for rows in (0, 1, 33):
        x, weight, dy = make(rows, 6), make(5, 6), make(rows, 5)
        yield ProductCall(x, weight.t(), make(5), _named("forward", x, weight))
        yield ProductCall(dy, weight, None, _named("input", dy, weight))
        yield ProductCall(dy.t(), x, None, Product("weight", rows, 6, 5, str(x.dtype)))


PRODUCT = OPERATIONS.add(Operation(
    "product", "the matrix products of a linear map and of its backward pass",
    Form(REFERENCE, _library, "PyTorch's own, by the library that it chooses", known_as=("default", "mkl")),
    Form(ONEDNN, _onednn, "oneDNN's own call", devices=frozenset({"cpu"}), gradients="without",
         dtypes=frozenset({torch.float32, torch.bfloat16}), transformed=False, serves=_built, worth=_own,
         known_as=("mkldnn",)),
    Form(SWITCHED, _switched, "PyTorch's own, set to oneDNN in float32", devices=frozenset({"cpu"}), compiled=False,
         dtypes=frozenset({torch.float32}), gradients="without", transformed=False, serves=_built, worth=_by_switch),
    subject="a", examples=_examples, known_as=("matmul", "mm", "gemm")))

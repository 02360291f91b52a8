"""A linear map, y = x W^T + b, and the forms that compute it. The route of each of its products is the library that
multiplies it, as it was measured."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.ops.form import Offer
from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation

_LACKING = platform.machine().lower() in ("x86_64", "amd64") and not (
    torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
"""Determined on import: `torch.compile` can trace a constant, but not the calls that determine it."""


def lacks_bfloat16() -> bool:
    """Whether this is an x86 processor that has neither AVX512-BF16 nor AMX."""
    return _LACKING


def widens(x: Tensor) -> bool:
    """Whether products of this tensor are faster by way of float32: as they were measured, or else as the processor's
    instructions let expect."""
    if x.dtype != torch.bfloat16 or x.device.type != "cpu":
        return False
    known = None if ROUTING.routes is None else ROUTING.routes.widens
    return lacks_bfloat16() if known is None else known


Which = Literal["forward", "input", "weight"]
ONEDNN, SWITCHED, WIDE = "onednn", "switched", "wide"
"""Names of the routes besides PyTorch's own, ``reference``."""
UNMEASURED = "no products measured"
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
        """The product that `str` gave this text. Raises `ValueError`: the text is none of a product."""
        which, shape, dtype = text.split(" ")
        rows, inputs, outputs = map(int, shape.split("x"))
        if which not in ("forward", "input", "weight"):
            raise ValueError(which)
        return Product(which, rows, inputs, outputs, f"torch.{dtype}")  # type: ignore[arg-type]


def _mostly_wide(known: Mapping[Product, str]) -> bool | None:
    """Whether more than half of the operations of the bfloat16 products go by way of float32; None without any."""
    work = [(each.flops(), route == WIDE) for each, route in known.items() if each.dtype == str(torch.bfloat16)]
    return 2 * sum(flops for flops, wide in work if wide) > sum(flops for flops, _ in work) if work else None


class Routes:
    """The routes of the products that were measured; ``otherwise`` is the route of other maps.

    Attributes:
        widens: whether bfloat16 products mostly go by way of float32; None where none was measured.
    """

    def __init__(self, known: Mapping[Product, str], otherwise: str) -> None:
        self.known, self.otherwise = dict(known), otherwise
        self._routes = dict(known)
        # Determined here: while torch.compile traces, this is a constant.
        self.widens = _mostly_wide(known)

    def of(self, product: Product) -> str:
        """The route of a product: its own, or that of the same map with the nearest number of rows."""
        route = self._routes.get(product)
        if route is None:
            same = [each for each in self.known if each._replace(rows=0) == product._replace(rows=0)]
            nearest = min(same, key=lambda each: abs(math.log(max(each.rows, 1) / max(product.rows, 1))), default=None)
            route = self._routes[product] = self.otherwise if nearest is None else self.known[nearest]
        return route


class _Routing:
    """The routes that are in force in the whole process."""

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

"""The route of every product of a linear map: which library multiplies it, as it was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple, final

import torch

from weft.ops.form import REFERENCE, Offer

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
        """The product that `str` gave this text.

        Raises:
            ValueError: the text is none of a product.
        """
        which, shape, dtype = text.split(" ")
        rows, inputs, outputs = map(int, shape.split("x"))
        if which not in ("forward", "input", "weight"):
            raise ValueError(which)
        return Product(which, rows, inputs, outputs, f"torch.{dtype}")  # type: ignore[arg-type]


def _mostly_wide(known: Mapping[Product, str]) -> bool | None:
    """Whether more than half of the operations of the bfloat16 products go by way of float32; None without any."""
    work = [(each.flops(), route == WIDE) for each, route in known.items() if each.dtype == str(torch.bfloat16)]
    return 2 * sum(flops for flops, wide in work if wide) > sum(flops for flops, _ in work) if work else None


@final
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


@final
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

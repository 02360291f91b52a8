"""How fast matrix products are here, and how exact, by each route that there is: the one place where they are timed.

A product is timed by all routes in turns, so that what disturbs the machine disturbs them alike, and a route is taken
only where it is faster by more than chance, and as exact as PyTorch's own.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.strict_json import Record
from weft.ops.forms import REFERENCE, Decision
from weft.ops.linear_cross_entropy import PIECE_ENTRIES
from weft.ops.products import PRODUCT, ProductCall
from weft.ops.routes import Product, Which

Clock = Callable[[], float]
SIZE = 1024
"""Rows and columns of the square product by which machines are compared."""
SHAPES = ((512, 768), (512, 1536), (1536, 512))
"""Inputs and outputs of the maps of a small Transformer, which stand for a model where none is at hand."""
ROWS = 512
"""Tokens of these."""
TURNS, LEAST_TURNS, SECONDS = 9, 5, 0.2
"""Turns of a product, and the time after which no more than the least number are made."""
FASTER = 1.05
"""In the median turn and by the fastest of them; less may be chance."""
ROUGHER = 8
"""By how much a route's error may exceed that of PyTorch's own: orders of summation differ by less, and bfloat16 in
place of float32 by a thousand."""
ROUTED = frozenset({"library", "routed"})
"""Forms of a linear map whose products can take a route."""
PASSES: tuple[Which, ...] = ("forward", "input", "weight")
CHECKED = 64
"""Rows of a result whose error is worked out."""


@dataclass(frozen=True)
class Timing(Record):
    """One product by every route.

    Attributes:
        product: as `Product` writes it.
        rates: operations a second, the median of the turns, by route; "reference" is PyTorch's own choice.
        errors: the largest difference from float64, relative to the largest entry.
        route: the one to take.
    """

    product: str
    rates: dict[str, float]
    errors: dict[str, float]
    route: str

    @property
    def gain(self) -> float:
        """How many times as fast as PyTorch's own choice."""
        return self.rates[self.route] / self.rates[REFERENCE]


def timed(products: Iterable[Product], clock: Clock = time.perf_counter) -> tuple[Timing, ...]:
    """Every product on this CPU, each shape once. Settings and random numbers are as before afterwards."""
    return tuple(_timing(product, clock) for product in dict.fromkeys(products))


def fastest(timings: Iterable[Timing]) -> dict[Product, str]:
    """The routes to take, of those products that PyTorch's own choice does not multiply the fastest."""
    return {Product.parse(each.product): each.route for each in timings if each.route != REFERENCE}


def usual_products(dtype: torch.dtype) -> tuple[Product, ...]:
    """Those of a small Transformer and of its training, and a square one."""
    return (_square(dtype), *(Product(which, ROWS, inputs, outputs, str(dtype))
                              for inputs, outputs in SHAPES for which in PASSES))


def products_in(decisions: Iterable[Decision], dtype: str) -> Iterator[Product]:
    """The products of the linear maps and readouts that were observed."""
    for each in decisions:
        if each.operation == "linear" and each.form in ROUTED:
            (*batch, inputs), (outputs, _) = each.sizes[:2]
            rows = math.prod(batch)
        elif each.operation in ("log_prob", "cross_entropy"):
            (*batch, inputs), (outputs, _) = each.sizes[:2]
            rows = min(math.prod(batch), max(1, PIECE_ENTRIES // outputs))
        else:
            continue
        yield from (Product(which, rows, inputs, outputs, dtype) for which in PASSES if rows)


def matmul_rate(dtype: torch.dtype, clock: Clock = time.perf_counter) -> float:
    """Operations a second of a large square product in ``dtype``, by the fastest exact route."""
    found = _timing(_square(dtype), clock)
    return found.rates[found.route]


def copy_bandwidth(megabytes: int = 128) -> float:
    """Bytes a second, read and written, of copying a tensor larger than the caches."""
    source = torch.ones(megabytes * 2**20 // 4)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / statistics.median(
        _turns({"copy": lambda: target.copy_(source)}, time.perf_counter)["copy"])


def _square(dtype: torch.dtype) -> Product:
    return Product("forward", SIZE, SIZE, SIZE, str(dtype))


def _timing(product: Product, clock: Clock) -> Timing:
    with torch.no_grad():
        call = _call(product)
        routes = [form for form in PRODUCT.forms() if PRODUCT.can(form, call)]
        errors = {form.name: _error(form.run(call), call) for form in routes}
        turns = _turns({form.name: lambda form=form: form.run(call) for form in routes}, clock)  # type: ignore[misc]
    rates = {name: product.flops() / statistics.median(seconds) for name, seconds in turns.items()}
    return Timing(str(product), rates, errors, _choice(turns, errors))


def _choice(turns: Mapping[str, list[float]], errors: Mapping[str, float]) -> str:
    """The route that beats PyTorch's own by the most, of those that are as exact. What disturbs some turns changes the
    median of their ratios or the fastest of them, and seldom both the same way."""
    own = turns[REFERENCE]
    gains = {name: min(statistics.median(a / b for a, b in zip(own, seconds, strict=True)), min(own) / min(seconds))
             for name, seconds in turns.items() if errors[name] <= ROUGHER * errors[REFERENCE]}
    best = max(gains, key=lambda name: gains[name])
    return best if gains[best] > FASTER else REFERENCE


def _turns(work: Mapping[str, Callable[[], object]], clock: Clock) -> dict[str, list[float]]:
    """Seconds of each in every turn, after one that is not timed."""
    for each in work.values():
        each()
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(TURNS):
        if turn >= LEAST_TURNS and sum(map(sum, seconds.values())) > SECONDS:
            break
        for name, each in work.items():
            begun = clock()
            each()
            seconds[name].append(max(clock() - begun, 1e-9))
    return seconds


def _call(product: Product) -> ProductCall:
    """Random matrices, laid out as they are in a linear map and its backward pass."""
    generator, dtype = torch.Generator().manual_seed(0), getattr(torch, product.dtype.removeprefix("torch."))
    rows, inputs, outputs = product.rows, product.inputs, product.outputs

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)

    if product.which == "forward":
        return ProductCall(random(rows, inputs), random(outputs, inputs).t(), None, product)
    if product.which == "input":
        return ProductCall(random(rows, outputs), random(outputs, inputs), None, product)
    return ProductCall(random(rows, outputs).t(), random(rows, inputs), None, product)


def _error(y: Tensor, call: ProductCall) -> float:
    truth = call.a[:CHECKED].double() @ call.b.double()
    return float((y[:CHECKED].double() - truth).abs().max() / truth.abs().max().clamp(min=1e-30))

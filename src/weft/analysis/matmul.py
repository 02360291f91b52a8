"""The speed and the error of matrix products on this machine, by each route that can compute them.

All routes are timed in turns, so that other load on the machine affects them alike. A route is chosen only if it is
faster by more than chance and as exact as PyTorch's own, and what was chosen is kept (`weft.analysis.kept_routes`).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.analysis.kept_routes import KeptRoute, RouteCache, today
from weft.core.errors import ConfigError
from weft.core.strict_json import Record
from weft.ops.forms import REFERENCE, Decision
from weft.ops.linear import Product, Which
from weft.ops.linear_cross_entropy import PIECE_ENTRIES
from weft.ops.products import PRODUCT, ProductCall

Clock = Callable[[], float]
SIZE = 1024
"""Rows and columns of the square product that stands for a machine's speed."""
SHAPES = ((512, 768), (512, 1536), (1536, 512))
"""Inputs and outputs of the linear maps of a small Transformer, for measurements without a model."""
ROWS = 512
"""Tokens that these maps are applied to."""
TURNS, LEAST_TURNS, SECONDS = 9, 5, 0.2
"""The most and the fewest turns of a product; after so many seconds no more than the fewest are run."""
LONGER = 10
"""The multiple of turns and seconds that a product gets whose median and fastest turns do not tell the same route:
other processes disturb it, and what is found is kept."""
FASTER = 1.05
"""The factor by which a route must be faster, in the median turn and in the fastest; less may be chance."""
ROUGHER = 8
"""The factor by which a route's error may exceed that of PyTorch's own: another order of summation changes it by less,
bfloat16 instead of float32 by about a thousand."""
ROUTED = frozenset({"library", "routed"})
"""Forms of a linear map whose products can take a route."""
PASSES: tuple[Which, ...] = ("forward", "input", "weight")
CHECKED = 64
"""Rows of a result whose error is computed."""


@dataclass(frozen=True)
class Timing(Record):
    """One product by every route.

    Attributes:
        product: the product, as `Product` is written.
        rates: operations per second by route, in the median turn; "reference" is PyTorch's own choice.
        errors: the largest difference from float64 by route, relative to the largest entry.
    """

    product: str
    rates: dict[str, float]
    errors: dict[str, float]
    route: str

    @property
    def gain(self) -> float:
        """The speed of the route as a multiple of that of PyTorch's own choice."""
        return self.rates[self.route] / self.rates[REFERENCE]


def timed(products: Iterable[Product], clock: Clock = time.perf_counter) -> tuple[Timing, ...]:
    """Time every product on this CPU, equal ones once. Settings and random numbers stay as they are."""
    return tuple(_timing(product, clock) for product in dict.fromkeys(products))


def chosen_once(products: Iterable[Product], tell: Callable[[str], object],
                clock: Clock = time.perf_counter) -> dict[Product, str]:
    """The routes of those products for which it is not PyTorch's own choice: those that this machine keeps, and for
    products without one the fastest, which is kept from now on. Where a route cannot be kept, so that another run might
    find another one, it is PyTorch's own, and ``tell`` is called with a sentence that says why. """
    wanted, problems = list(dict.fromkeys(products)), list[str]()
    cache = RouteCache()
    routes = {product: _kept_route(cache, product, problems, clock) for product in wanted}
    for problem in dict.fromkeys(problems):
        tell(f"{problems.count(problem)} of {len(wanted)} matrix products take PyTorch's own route, which may be "
             f"slower, since what is measured cannot be kept: {problem}.")
    return {product: route for product, route in routes.items() if route != REFERENCE}


def _kept_route(cache: RouteCache, product: Product, problems: list[str], clock: Clock) -> str:
    """The route of a product that is kept, or is measured and kept now; where that cannot be, PyTorch's own, and the
    reason is added to ``problems``."""
    try:
        found = cache.route(product)
        if found is None:
            cache.require_writable()
            found = cache.keep(_kept(_timing(product, clock)))
    except OSError as error:
        problems.append(f"{cache.folder} cannot be used ({error.strerror or error}). Name a folder that can be written "
                        "to in the variable WEFT_CACHE_DIR")
        return REFERENCE
    except ValueError as error:
        problems.append(str(error))
        return REFERENCE
    return found


def as_kept(timings: Iterable[Timing]) -> tuple[Timing, ...]:
    """The timings with the route that this machine keeps of each product, where it keeps one."""
    kept = {each.product: each.route for each in RouteCache()}
    return tuple(replace(each, route=kept.get(each.product, each.route)) for each in timings)


def renew(clock: Clock = time.perf_counter) -> None:
    """Measure every product again whose route is kept, and keep what is found now. Raises `ConfigError`: the folder
    cannot be written to."""
    cache = RouteCache()
    try:
        for before in list(cache):
            cache.replace(_kept(_timing(Product.parse(before.product), clock)))
    except (OSError, ValueError) as error:
        raise ConfigError([f"the routes in {cache.folder} cannot be renewed ({error}). Name a folder that can be "
                           "written to in the variable WEFT_CACHE_DIR."]) from None


def _kept(timing: Timing) -> KeptRoute:
    return KeptRoute(timing.product, timing.route, round(timing.gain, 3), today())


def usual_products(dtype: torch.dtype) -> tuple[Product, ...]:
    """A square product, and those of a small Transformer's forward and backward pass."""
    return (_square(dtype), *(Product(which, ROWS, inputs, outputs, str(dtype))
                              for inputs, outputs in SHAPES for which in PASSES))


def products_in(decisions: Iterable[Decision], dtype: str) -> Iterator[Product]:
    """The products of the linear maps and readouts among the decisions."""
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
    """Operations per second of a large square product in ``dtype``, by the fastest exact route."""
    timing = _timing(_square(dtype), clock)
    return timing.rates[timing.route]


def copy_bandwidth(megabytes: int = 128) -> float:
    """Bytes per second, read and written, of copying a tensor that is larger than the caches."""
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
    """The fastest of the routes that are as exact as PyTorch's own, if it is faster by `FASTER`.

    Both the median of the turns' ratios and the ratio of the fastest turns must show it: a disturbance of some turns
    seldom changes both in the same direction.
    """
    gains = {name: min(_gains(turns, name)) for name in turns if errors[name] <= ROUGHER * errors[REFERENCE]}
    best = max(gains, key=lambda name: gains[name])
    return best if gains[best] > FASTER else REFERENCE


def _gains(turns: Mapping[str, list[float]], name: str) -> tuple[float, float]:
    """How many times as fast as PyTorch's own choice a route is: by the median of the turns' ratios, and by the fastest
    turns."""
    own, seconds = turns[REFERENCE], turns[name]
    return statistics.median(a / b for a, b in zip(own, seconds, strict=True)), min(own) / min(seconds)


def _undecided(turns: Mapping[str, list[float]]) -> bool:
    """Whether the median and the fastest turns differ about a route being faster by `FASTER`."""
    return any((middle > FASTER) != (least > FASTER) for middle, least in (_gains(turns, name) for name in turns))


def _turns(work: Mapping[str, Callable[[], object]], clock: Clock) -> dict[str, list[float]]:
    """The seconds of each callable in every turn, after one call that is not timed."""
    for each in work.values():
        each()
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(LONGER * TURNS):
        spent = sum(map(sum, seconds.values()))
        enough = turn >= TURNS or (turn >= LEAST_TURNS and spent > SECONDS)
        if enough and (spent > LONGER * SECONDS or REFERENCE not in work or not _undecided(seconds)):
            break
        for name, each in work.items():
            start = clock()
            each()
            seconds[name].append(max(clock() - start, 1e-9))
    return seconds


def _call(product: Product) -> ProductCall:
    """A product of random matrices, with the memory layout that they have in a linear map and its backward pass."""
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
    exact = call.a[:CHECKED].double() @ call.b.double()
    return float((y[:CHECKED].double() - exact).abs().max() / exact.abs().max().clamp(min=1e-30))

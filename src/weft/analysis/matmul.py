"""How fast matrix products are here, and how exact, by each route that PyTorch offers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.analysis.result import Result

SIZE = 1024
"""Rows and columns of the matrices measured."""
REPEATS = 5


@dataclass(frozen=True)
class Route(Result):
    """One way to multiply two matrices of ``SIZE`` by ``SIZE``.

    Attributes:
        rate: operations a second, the median of a few.
        error: largest difference from float64, relative to the largest entry.
    """

    name: str
    rate: float
    error: float


def routes() -> tuple[Route, ...]:
    """The routes of this machine's CPU, measured. Settings are as before afterwards."""
    exact = _random(torch.float64)
    truth = F.linear(*exact)
    single, half = ([x.to(dtype) for x in exact] for dtype in (torch.float32, torch.bfloat16))
    found = [_measure("float32, PyTorch's default", single, truth)]
    if torch.backends.mkldnn.is_available():
        with fp32_precision("bf16"):
            found.append(_measure('float32, torch.backends.mkldnn.matmul.fp32_precision = "bf16"', single, truth))
    found.append(_measure("bfloat16", half, truth))
    return tuple(found)


def matmul_rate(dtype: torch.dtype) -> float:
    """Operations a second of a square product in ``dtype``, by the route that is set now."""
    a, b = _random(dtype)
    return _rate(lambda: F.linear(a, b))


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


def copy_bandwidth(megabytes: int = 128) -> float:
    """Bytes a second, read and written, of copying a tensor larger than the caches."""
    source = torch.ones(megabytes * 2**20 // 4)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / _median_seconds(lambda: target.copy_(source))


def _measure(name: str, pair: list[Tensor], truth: Tensor) -> Route:
    a, b = pair
    error = (F.linear(a, b).double() - truth).abs().max() / truth.abs().max()
    return Route(name, _rate(lambda: F.linear(a, b)), float(error))


def _random(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2)]


def _rate(multiply: Callable[[], Tensor]) -> float:
    return 2 * SIZE**3 / _median_seconds(multiply)


def _median_seconds(work: Callable[[], Tensor]) -> float:
    """Of a few calls after one that is not timed."""
    times = []
    for _ in range(REPEATS + 1):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])

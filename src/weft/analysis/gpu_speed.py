"""The speed of a GPU, measured: matrix products by dtype, a copy in its memory, and what starting a kernel takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from weft.core.strict_json import Record

SIZE, COPIED, LAUNCHES = 8192, 1 << 30, 500
"""Rows of the square matrices, bytes that are copied, and kernels that are started one after another."""
PRODUCTS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "tf32": torch.float32, "float32": torch.float32}
"""The dtype of the matrices of each product; tf32 are those of float32 whose factors are rounded to 10 bits."""
Work: TypeAlias = Callable[[], object]
Timer: TypeAlias = Callable[[Work], float]


@dataclass(frozen=True)
class CardSpeed(Record):
    """The speed of a card.

    Attributes:
        name: of the device, such as ``cuda:0``.
        products: operations per second of a large square product, by dtype.
        copy: bytes per second, read and written, of a copy in the card's memory.
        launch: seconds that one small PyTorch operation takes after another.
        graph: seconds that the replay of a CUDA graph of one small operation takes; None where there are no graphs.
        in_graph: seconds that each of many small operations in one CUDA graph takes; None where there are none.
    """

    name: str
    products: dict[str, float]
    copy: float
    launch: float
    graph: float | None
    in_graph: float | None


def seconds_of(device: torch.device) -> Timer:
    """A timer of work on ``device``, in seconds; on a GPU between two events of its own clock."""
    def on_card(work: Work) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def on_processor(work: Work) -> float:
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun

    return on_card if device.type == "cuda" else on_processor


def card_speed(device: torch.device, *, size: int = SIZE, copied: int = COPIED, launches: int = LAUNCHES,
               timer: Timer | None = None) -> CardSpeed:
    """Measure a device, which takes about a second on a GPU.

    Args:
        size: rows and columns of the matrices, which are of random numbers: zeros would draw less power.
        copied: bytes of the tensor that is copied.
        launches: small operations in a row.
        timer: returns the seconds that some work takes; None: that of the device (`seconds_of`).
    """
    taken = seconds_of(device) if timer is None else timer
    products = {name: _product(name, device, size, taken) for name in PRODUCTS}
    source = torch.empty(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * copied / _median(lambda: target.copy_(source), taken)
    one = torch.zeros(1, device=device)
    launch = _median(lambda: _small(one, launches), taken) / launches
    graphs = (None, None) if device.type != "cuda" else (
        _median(_recorded(one, 1), taken), _median(_recorded(one, launches), taken) / launches)
    return CardSpeed(str(device), products, copy, launch, *graphs)


def _product(name: str, device: torch.device, size: int, taken: Timer) -> float:
    a, b = torch.randn(2, size, size, device=device, dtype=torch.float32).to(PRODUCTS[name])
    with _precision("high" if name == "tf32" else "highest"):
        return 2 * size**3 / _median(lambda: a @ b, taken)


@contextmanager
def _precision(name: str) -> Iterator[None]:
    """A context in which products of float32 are as precise as that."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _median(work: Work, taken: Timer, times: int = 7) -> float:
    """Seconds, after two calls that are not counted."""
    return statistics.median([taken(work) for _ in range(times + 2)][2:])


def _small(x: torch.Tensor, times: int) -> None:
    for _ in range(times):
        x.add_(1)


def _recorded(x: torch.Tensor, times: int) -> Work:
    """The replay of a CUDA graph of so many small operations."""
    _small(x, 1)
    torch.cuda.synchronize()
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _small(x, times)
    replay: Work = graph.replay
    return replay

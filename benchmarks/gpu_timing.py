"""How the figures of `gpu.py` are timed: contenders in turns, between events on the device, in medians."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.analysis.gpu_speed import Work, seconds_of

Known = Mapping[str, Any]


class Figure(NamedTuple):
    """One figure.

    Attributes:
        seconds: that it takes on an H100, compiling included; a figure is not begun where less time is left.
        take: takes it; its arguments say whether everything is to be tiny, and which figures are known already.
    """

    seconds: float
    take: Callable[[bool, Known], dict[str, Any]]


def device() -> torch.device:
    """Where figures are taken."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def settled() -> None:
    """Wait until the device has done everything."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def emptied() -> None:
    """Give back the memory of what nobody holds."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def why(error: BaseException) -> str:
    """An error in a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"


def in_turns(contenders: Mapping[str, Work], *, seconds: float = 1.0, most: int = 20) -> dict[str, Any]:
    """Milliseconds of each, the median; for one that fails, why.

    Each is called twice first, which compiles and is not counted. Then they take turns, three times at least, and more
    often where all turns fit into ``seconds``; one that is 20 times as slow as the fastest has three turns.
    """
    timer = seconds_of(device())
    first: dict[str, float] = {}
    found: dict[str, Any] = {}
    for name, work in contenders.items():
        try:
            work()
            settled()
            first[name] = timer(work)
        except Exception as error:  # one contender's failure is its figure
            found[name] = f"failed: {why(error)}"
            emptied()
    if not first:
        return found
    quick = [name for name in first if first[name] <= 20 * min(first.values())]
    rounds = max(3, min(most, int(seconds / max(sum(first[name] for name in quick), 1e-9))))
    taken: dict[str, list[float]] = {name: [] for name in first}
    for turn in range(rounds):
        for name in first:
            if name in quick or turn < 3:
                taken[name].append(timer(contenders[name]))
    return found | {name: 1e3 * statistics.median(each) for name, each in taken.items()}


def both_ways(run: Callable[[], Tensor], leaves: Sequence[Tensor],
              within: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Work:
    """Forward and backward, with a gradient of random numbers."""
    made: list[Tensor] = []

    def work() -> object:
        with within():
            y = run()
            if not made:
                made.append(torch.randn_like(y))
            return torch.autograd.grad(y, list(leaves), made[0])

    return work


def forward_only(run: Callable[[], Tensor]) -> Work:
    """Forward, without gradients."""
    def work() -> object:
        with torch.no_grad():
            return run()

    return work


def peak_while(work: Callable[[], Any]) -> tuple[Any, float | None]:
    """What ``work`` returns, and by how many GiB the most memory during it was above that before."""
    if not torch.cuda.is_available():
        return work(), None
    emptied()
    settled()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = work()
    settled()
    return found, (torch.cuda.max_memory_allocated() - before) / 2**30

"""Lists in which equal neighbours and repeating patterns are written once, with how often they occur."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Fold(Generic[T]):
    """Items that occur ``repeat`` times in a row.

    Attributes:
        first: index of the first item in the list that was folded.
    """

    items: tuple[T | Fold[T], ...]
    repeat: int
    first: int


Folded: TypeAlias = "tuple[T | Fold[T], ...]"


def folded(items: Sequence[T], keys: Sequence[Hashable], start: int = 0) -> Folded[T]:
    """The items with repetitions folded, patterns inside of patterns too.

    At every place the pattern that covers most items is taken, of equal ones the shortest.

    Args:
        keys: equal for items that count as equal.
        start: index of the first item.
    """
    found: list[T | Fold[T]] = []
    index = 0
    while index < len(items):
        period, repeat = _longest(keys, index)
        if repeat < 2:
            found.append(items[index])
            index += 1
            continue
        inner = folded(items[index:index + period], keys[index:index + period], start + index)
        found.append(Fold(inner, repeat, start + index))
        index += period * repeat
    return tuple(found)


def _longest(keys: Sequence[Hashable], index: int) -> tuple[int, int]:
    """The length of the pattern at a place that covers most items, and how often it occurs there."""
    best = (1, 1)
    for period in range(1, (len(keys) - index) // 2 + 1):
        pattern, repeat = keys[index:index + period], 1
        while keys[index + repeat * period:index + (repeat + 1) * period] == pattern:
            repeat += 1
        if repeat > 1 and period * repeat > best[0] * best[1]:
            best = (period, repeat)
    return best


def ranges(numbers: Iterable[int]) -> str:
    """``0 to 3, 5``: numbers in order, runs of three and more shortened."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)

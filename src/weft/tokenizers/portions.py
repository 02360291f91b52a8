"""Work in portions of about the same size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def portions(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """The items in lists, in order; a list ends with the item that brings its size to ``limit``."""
    portion: list[T] = []
    held = 0
    for item in items:
        portion.append(item)
        held += size(item)
        if held >= limit:
            yield portion
            portion, held = [], 0
    if portion:
        yield portion

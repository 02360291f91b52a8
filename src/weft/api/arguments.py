"""What several functions allow in their arguments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def one_or_more(given: str | Iterable[T]) -> list[T | str]:
    """What was given, a text alone as the one item that it is: not as a sequence of its characters."""
    return [given] if isinstance(given, str) else list(given)

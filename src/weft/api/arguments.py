"""Argument conversions that several functions share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def one_or_more(given: str | Iterable[T]) -> list[T | str]:
    """Return a single string as a list of one item, rather than of its characters, and any other iterable as a list."""
    return [given] if isinstance(given, str) else list(given)

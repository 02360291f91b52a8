"""The share of all pairs of a query and a key that a mask allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.core.span import WHOLE
from weft.masks.terms import Pattern

ROWS = 512
"""Queries that are evaluated at once."""


def visible_share(allowed: Callable[[Ticks, Keys], Tensor], heads: int, steps: int) -> float:
    """See `Mask.share`."""
    ticks = WHOLE.resolve(None, torch.empty(1, steps)).ticks
    keys, seen = Keys.of(ticks), 0
    for first in range(0, steps, ROWS):
        seen += int(allowed(_slice(ticks, first), keys).sum())
    return seen / (steps * steps * heads)


def pattern_share(pattern: Pattern, steps: int) -> float:
    """The same for a mask that is a `Pattern`, by arithmetic: rows of a document without padding."""
    recent = _least(1, steps, steps if pattern.size is None else pattern.size)
    later = 0 if pattern.causal else _least(0, steps - 1, steps if pattern.ahead is None else pattern.ahead)
    return (recent + later) / (steps * steps)


def _least(first: int, last: int, most: int) -> int:
    """The sum of min(i, most) over i from ``first`` to ``last``."""
    up = min(last, most)
    return (up * (up + 1) - first * (first - 1)) // 2 + (last - up) * most if up >= first else (last - first + 1) * most


def _slice(ticks: Ticks, first: int) -> Ticks:
    rows = slice(first, first + ROWS)
    return dataclasses.replace(ticks, order=ticks.order[:, rows], begin=ticks.begin[:, rows],
                               prefix_end=ticks.prefix_end[:, rows], length=ticks.length[:, rows])

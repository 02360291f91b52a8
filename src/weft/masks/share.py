"""The share of all pairs of a query and a key that a mask allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.core.span import WHOLE

ROWS = 512
"""Queries that are evaluated at once."""


def visible_share(allowed: Callable[[Ticks, Keys], Tensor], heads: int, steps: int) -> float:
    """See `Mask.share`."""
    ticks = WHOLE.resolve(None, torch.empty(1, steps)).ticks
    keys, seen = Keys.of(ticks), 0
    for first in range(0, steps, ROWS):
        seen += int(allowed(_slice(ticks, first), keys).sum())
    return seen / (steps * steps * heads)


def _slice(ticks: Ticks, first: int) -> Ticks:
    rows = slice(first, first + ROWS)
    return dataclasses.replace(ticks, order=ticks.order[:, rows], begin=ticks.begin[:, rows],
                               prefix_end=ticks.prefix_end[:, rows], length=ticks.length[:, rows])

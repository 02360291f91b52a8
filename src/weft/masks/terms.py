"""The terms of masks: query and key of a rule, the pattern that kernels recognise, the band that bounds a mask,
and the check of their integer arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.core.errors import ConfigError
from weft.core.span import WHOLE

Lookahead = Literal["none", "prefix", "any"]
"""Which later keys a mask may allow: none, those of the query's own prefix, any."""

AMOUNTS: tuple[Lookahead, ...] = ("none", "prefix", "any")
"""From the least to the most."""


NO_FACTS: Mapping[str, Tensor] = MappingProxyType({})


class Query(NamedTuple):
    """The facts of queries that a rule may use; the fields broadcast against those of `Key`. ``facts`` are those that
    the mask `reads`."""

    order: Tensor
    begin: Tensor
    prefix_end: Tensor
    facts: Mapping[str, Tensor] = NO_FACTS


class Key(NamedTuple):
    """The facts of keys that a rule may use. ``begin`` and ``valid`` are None where they are not stored, as in
    `Keys`."""

    order: Tensor
    begin: Tensor | None
    valid: Tensor | None
    facts: Mapping[str, Tensor] = NO_FACTS


@dataclass(frozen=True)
class Pattern:
    """A mask in terms that a kernel recognises: a key is allowed if it satisfies all of these conditions.

    Attributes:
        causal: no key later than the query.
        size: only the ``size`` most recent keys, the query's own included; None: no window.
        documents: only keys of the query's document.
        padding: only keys that exist.
        ahead: no later keys than the next ``ahead``; None: no bound but that of ``causal``.
    """

    causal: bool = False
    size: int | None = None
    documents: bool = False
    padding: bool = False
    ahead: int | None = None

    def merge(self, other: Pattern) -> Pattern:
        """Both restrictions together."""
        sizes = [size for size in (self.size, other.size) if size is not None]
        ahead = [bound for bound in (self.ahead, other.ahead) if bound is not None]
        return Pattern(self.causal or other.causal, min(sizes, default=None), self.documents or other.documents,
                       self.padding or other.padding, min(ahead, default=None))


@dataclass(frozen=True)
class Band:
    """Bounds on the keys of its document that a query may attend to, for all tokens; None: no bound.

    Attributes:
        size: number of most recent keys, the query's own included.
        ahead: number of later keys.
        first: number of the document's first tokens that are allowed besides.
    """

    size: int | None = None
    ahead: int | None = None
    first: int = 0

    def meet(self, other: Band) -> Band:
        """Bounds on what both allow."""
        ahead = [band.ahead for band in (self, other) if band.ahead is not None]
        mine = other.size is None or (self.size is not None and self.size + self.first <= other.size + other.first)
        past = self if mine else other
        return Band(past.size, min(ahead, default=None), past.first)

    def join(self, other: Band) -> Band:
        """Bounds on what either allows."""
        ahead = None if self.ahead is None or other.ahead is None else max(self.ahead, other.ahead)
        if self.size is None or other.size is None:
            return Band(None, ahead)
        return Band(max(self.size, other.size), ahead, max(self.first, other.first))


def require_count(kind: str, name: str, value: object, least: int, why: str) -> None:
    """Raise a `ConfigError` that gives ``why`` unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError([f"{kind}: {name} is {value!r}, but must be an integer. Give {least} or more."])
    if value < least:
        raise ConfigError([f"{kind}: {name} is {value}, but {why}. Give {least} or more."])


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

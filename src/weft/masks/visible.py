"""Which keys the queries of one call may attend to, in symbolic form: no tensor is made before a form needs it.

Blocks of queries, each with the keys that a band allows it: the units that blockwise attention computes.

    keys      f f . . . k k k k k k .        one block: its own band, preceded by the document's first tokens
    columns   f f       c c c c c c

A tensor *laid on the grid* has a row for each query and a column for each key of the widest block, so that it grows
with the tokens times the width of the band; one of as many rows as a block is the same for all blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeAlias

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.clock import OWN, Keys, Ticks
from weft.core.span import Span
from weft.masks.base import Mask
from weft.masks.basic import Bidirectional, Documents
from weft.masks.terms import Band, Pattern

Parts: TypeAlias = tuple[slice, ...]
"""Slices of one dimension, in order."""


def picked(x: Tensor, dim: int, parts: Parts) -> Tensor:
    """The slices ``parts`` of ``x`` along ``dim``, concatenated."""
    found = [x.narrow(dim, part.start, part.stop - part.start) for part in parts]
    return found[0] if len(found) == 1 else torch.cat(found, dim)


class QueryBlock(NamedTuple):
    """Consecutive queries, the keys that are read for them, and the columns of the grid in which those keys lie."""

    queries: slice
    keys: Parts
    columns: Parts


@dataclass(frozen=True)
class Grid:
    """Blocks of ``rows`` queries.

    Attributes:
        steps: queries T.
        keys: keys S.
        offset: index of the first query's own key.
        size: number of keys up to the query's own that it may attend to.
        ahead: number of later keys that it may attend to.
        first: number of keys at the front that every query may attend to.
        rows: queries of a block; the last may have fewer.
    """

    steps: int
    keys: int
    offset: int
    size: int
    ahead: int
    first: int
    rows: int

    @classmethod
    def of(cls, band: Band, *, steps: int, keys: int, offset: int, rows: int) -> Self:
        """The grid of a band that bounds the later keys."""
        assert band.ahead is not None, "without a bound on later keys every block needs them all"
        longest = offset + steps
        return cls(steps, keys, offset, longest if band.size is None else min(band.size, longest),
                   min(band.ahead, keys), min(band.first, keys), rows)

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.first + self.size - 1 + self.rows + self.ahead

    def blocks(self) -> Iterator[QueryBlock]:
        """All blocks in order."""
        for at in range(0, self.steps, self.rows):
            end, start = min(at + self.rows, self.steps), self.offset + at - self.size + 1
            low = max(self.first, start)
            high = max(low, min(self.keys, self.offset + end + self.ahead))
            shift = self.first - start
            yield QueryBlock(slice(at, end), self._pieces(low, high, low == self.first),
                             self._pieces(low + shift, high + shift, low == start))

    def _pieces(self, low: int, high: int, joined: bool) -> Parts:
        """The first keys and those from ``low`` to ``high``; as one slice where they are adjacent."""
        if self.first == 0:
            return (slice(low, high),)
        return (slice(0, high),) if joined else (slice(0, self.first), slice(low, high))

    def laid(self, of_block: Callable[[QueryBlock], Tensor], fill: float | bool) -> Tensor:
        """The values of ``of_block`` for each block's queries and keys [#B,#H,t,s], laid on the grid [#B,#H,T,width];
        columns without a key hold ``fill``."""
        return torch.cat([self._row(block, of_block(block), fill) for block in self.blocks()], -2)

    def _row(self, block: QueryBlock, x: Tensor, fill: float | bool) -> Tensor:
        pieces, at = [], 0
        for part, piece in zip(block.columns, x.split([part.stop - part.start for part in block.columns], -1),
                               strict=True):
            pieces += [x.new_full((*x.shape[:-1], part.start - at), fill), piece]
            at = part.stop
        return torch.cat([*pieces, x.new_full((*x.shape[:-1], self.width - at), fill)], -1)


def ticks_at(ticks: Ticks, queries: slice) -> Ticks:
    """The ticks of some tokens of a chunk."""
    def cut(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[:, queries]

    return replace(ticks, order=ticks.order[:, queries], begin=ticks.begin[:, queries],
                   prefix_end=ticks.prefix_end[:, queries], length=ticks.length[:, queries],
                   coordinates=cut(ticks.coordinates), valid=cut(ticks.valid))


def keys_at(keys: Keys, parts: Parts) -> Keys:
    """The keys in these slices."""
    def cut(x: Tensor | None) -> Tensor | None:
        return None if x is None else picked(x, 1, parts)

    return Keys(picked(keys.order, 1, parts), picked(keys.position, 1, parts), cut(keys.begin), cut(keys.valid))


class KeyInterval(NamedTuple):
    """Consecutive keys of each query, by index.

    Attributes:
        offset: the index of the first query's own key; those of the others follow.
        back: how many keys before its own a query attends to; None: all.
        ahead: how many after its own; None: all.
        start: the first key that a query attends to, [#B,#T]; None: the first of all.
        stop: the last one, likewise.
    """

    offset: int
    back: int | None
    ahead: int | None
    start: Int64[Tensor, "#B #T"] | None = None
    stop: Int64[Tensor, "#B #T"] | None = None


class VisibleKeys(ABC):
    """Base. A form of attention takes as little as it needs: plain facts, the tensor of a part, or the whole tensor."""

    causal: bool = False
    """Whether there are as many queries as keys, and query i attends to exactly the keys 0 to i."""

    everything: bool = False
    """Every query sees every key."""

    offset: int | None = None
    """The index of the first query's own key where keys lie in order, as in `Keys`."""

    def band(self) -> Band:
        """Bounds on the keys that a query may attend to."""
        return Band()

    def interval(self) -> KeyInterval | None:
        """The keys of every query where they are known to be consecutive and the same for all heads; None: they may
        not be."""
        return None

    @abstractmethod
    def dense(self) -> Bool[Tensor, "#B #H T S"] | None:
        """True where a query may attend to a key; None: everywhere."""

    def hidden(self, grid: Grid) -> Bool[Tensor, "#B #H T width"]:
        """Laid on a grid: True where a query may not attend to a key. Only with a band and an offset."""
        raise NotImplementedError(f"{type(self).__name__} has no band")


class AllKeys(VisibleKeys):
    """Every key."""

    everything = True

    def interval(self) -> KeyInterval:
        return KeyInterval(0, None, None)

    def dense(self) -> None:
        return None


class ExistingKeys(VisibleKeys):
    """Every key that exists.

    Args:
        valid: False for keys that hold nothing, [B,S].
    """

    def __init__(self, valid: Bool[Tensor, "B S"], steps: int) -> None:
        self._valid, self._steps = valid, steps

    def dense(self) -> Bool[Tensor, "B 1 T S"]:
        return self._valid[:, None, None, :].expand(-1, -1, self._steps, -1)


@dataclass(frozen=True)
class MaskFacts:
    """A mask with the facts about it that every call needs.

    Attributes:
        band: that of the mask.
        pattern: that of the mask.
        window: its pattern where that is causal, with or without a window.
        everything: whether it is `Bidirectional`.
        heads: query heads to evaluate; None: `Mask.heads`.
    """

    mask: Mask
    band: Band
    pattern: Pattern | None
    window: Pattern | None
    everything: bool
    heads: int | None

    @staticmethod
    def of(mask: Mask, heads: int) -> MaskFacts:
        """The rule of a mask for that many query heads."""
        return MaskFacts(mask, mask.band(), mask.pattern(), mask.causal_window(), mask == Bidirectional(),
                         heads if mask.heads() > 1 else None)


class MaskedKeys(VisibleKeys):
    """The keys that a mask allows among those that exist, within each query's own document.

    Args:
        begins: whether a document may begin inside the chunk.
    """

    def __init__(self, rule: MaskFacts, ticks: Ticks, keys: Keys, *, begins: bool) -> None:
        self.rule, self.ticks, self.keys = rule, ticks, keys
        band = rule.band
        steps, own = ticks.order.shape[1], keys.layout == OWN
        # A causal mask already excludes the padding, which follows a row's tokens.
        self._plain = rule.window is not None and not ticks.packed and (own or keys.valid is None)
        self.causal = self._plain and own and (band.size is None or steps <= band.size)
        # Keys at the front are the first tokens of one document, that of all of the row's queries.
        self.offset = None if begins and band.first else keys.offset

    def band(self) -> Band:
        return self.rule.band

    def interval(self) -> KeyInterval | None:
        ticks, window, offset = self.ticks, self.rule.window, self.offset
        if window is not None and offset is not None:
            back = None if window.size is None else window.size - 1
            if self._plain:
                return KeyInterval(offset, back, 0)
            # From a document's first token to the query's own every key exists: padding and empty slots lie outside.
            own = torch.arange(offset, offset + ticks.order.shape[1], device=ticks.order.device)
            return KeyInterval(offset, back, 0, own + ticks.begin - ticks.order)
        both, valid = self.rule.pattern, self.keys.valid
        if both is None or both.causal or self.keys.layout != OWN or ticks.packed:
            return None
        back = None if both.size is None else both.size - 1
        return KeyInterval(0, back, both.ahead, stop=None if valid is None else valid.sum(1, keepdim=True) - 1)

    def dense(self) -> Bool[Tensor, "#B #H T S"]:
        if self.keys.layout is None:
            return self.written(self.ticks, self.keys)
        return self.ticks.once((self.rule, self.keys.layout), lambda: self.written(self.ticks, self.keys))

    def hidden(self, grid: Grid) -> Bool[Tensor, "#B #H T width"]:
        if self._plain:
            return self.ticks.once(("plain band", grid), lambda: _outside(grid, self.ticks.order.device))
        if self.keys.layout is None:
            return grid.laid(self._hidden, True)
        return self.ticks.once((self.rule, self.keys.layout, grid), lambda: grid.laid(self._hidden, True))

    def _hidden(self, block: QueryBlock) -> Tensor:
        return ~self.written(ticks_at(self.ticks, block.queries), keys_at(self.keys, block.keys))

    def written(self, ticks: Ticks, keys: Keys) -> Tensor:
        """Whether the queries of some ticks may attend to some keys, [#B,#H,t,s]."""
        allowed = self.rule.mask.allowed(ticks, keys, self.rule.heads)
        if ticks.packed:
            allowed = allowed & Documents().allowed(ticks, keys)
        return allowed if keys.valid is None else allowed & keys.valid[:, None, None, :]


def _outside(grid: Grid, device: torch.device) -> Tensor:
    """The keys outside the band, [1,1,rows,width], which are the same for every block."""
    place = torch.arange(grid.width, device=device) - torch.arange(grid.rows, device=device)[:, None]
    back = grid.size - 1 - place
    return ((back >= grid.size) | (back < -grid.ahead))[None, None]


def visible(rule: MaskFacts, keys: Keys, span: Span) -> VisibleKeys:
    """The keys that the queries of a call may attend to.

    Args:
        keys: the keys of the call.
        span: the span of the call, resolved.
    """
    ticks, own = span.ticks, keys.layout == OWN
    if own and span.full and not ticks.packed and rule.everything:
        return AllKeys()
    window = rule.window
    one = not own and span.uniform and ticks.order.shape[1] == 1 and not ticks.packed
    if one and window is not None and span.bound is not None and span.bound >= (window.size or 0):
        return AllKeys()
    return MaskedKeys(rule, ticks, keys, begins=span.packed)

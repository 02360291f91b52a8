"""Blocks of queries, each with the keys that a band allows it: the units that blockwise attention computes.

    keys      f f . . . k k k k k k .        one block: its own band, preceded by the document's first tokens
    columns   f f       c c c c c c

A tensor *laid on the grid* has a row for each query and a column for each key of the widest block, so that it grows
with the tokens times the width of the band; one of as many rows as a block is the same for all blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeAlias, final

import torch
from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.masks.terms import Band

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


@final
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

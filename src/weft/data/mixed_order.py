"""The rows of a mixture in order: shares that hold at every prefix, and sources that end.

Which source each row is read from: shares that are right at every prefix, not only on average.

With shares f_1, ..., f_k that add up to one, after n rows source s has had c_s(n) of them with

    |c_s(n) - n f_s| < 1    for every n and s.

Random draws would be off by the square root of n. It is the schedule of Baruah, Cohen, Plaxton and Varvel 1996,
"Proportionate progress", for one processor: row j of a source may come once n f_s has passed j and must come before it
passes j + 1, and of the rows that may come the one with the earliest deadline does. Shares are whole multiples of one
over ``PERIOD``, in which the schedule repeats itself, so that any row can be computed without those of earlier periods,
in integers, alike on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from weft.core.errors import DataError

PERIOD = 1 << 22
"""Rows after which the schedule repeats itself. A share is rounded to a multiple of 2.4e-7."""
BLOCK = 1 << 12
"""Rows that are scheduled at a time, with the sums of all earlier ones beside them."""


class MixtureRows(NamedTuple):
    """Rows of a mixture.

    Attributes:
        source: of each row.
        number: how many rows of that source came before it.
    """

    source: Int64[np.ndarray, " n"]
    number: Int64[np.ndarray, " n"]


class Schedule:
    """The sources of an endless sequence of rows with fixed shares.

    Args:
        shares: of the sources, not negative, one of them positive; they are divided by their sum.
        period: rows after which it repeats itself.
    """

    def __init__(self, shares: Sequence[float], period: int = PERIOD) -> None:
        self.period = period
        self.each = whole_shares(shares, period)
        self._rows = earliest_deadline(self.each, period)
        self._blocks: list[np.ndarray] = []
        self._before = [np.zeros(len(self.each), dtype=np.int64)]

    def counts(self, n: int) -> Int64[np.ndarray, " k"]:
        """How many of the first ``n`` rows are of each source."""
        periods, place = divmod(n, self.period)
        block, inside = divmod(place, BLOCK)
        found: np.ndarray = self._before_block(block) + periods * self.each
        if inside:
            found = found + np.bincount(self._block(block)[:inside], minlength=len(self.each))
        return found

    def rows(self, first: int, last: int) -> MixtureRows:
        """The rows from ``first`` to before ``last``."""
        source = np.concatenate([np.array([], dtype=np.int64), *self._pieces(first, last)])
        number, before = np.empty_like(source), self.counts(first)
        for each in np.unique(source).tolist():
            here = np.flatnonzero(source == each)
            number[here] = before[each] + np.arange(len(here))
        return MixtureRows(source, number)

    def _pieces(self, first: int, last: int) -> Iterator[np.ndarray]:
        while first < last:
            block, inside = divmod(first % self.period, BLOCK)
            piece = self._block(block)[inside:inside + last - first]
            yield piece.astype(np.int64)
            first += len(piece)

    def _block(self, block: int) -> np.ndarray:
        self._before_block(block + 1)
        return self._blocks[block]

    def _before_block(self, block: int) -> Int64[np.ndarray, " k"]:
        """The counts before a block; all blocks before it are scheduled."""
        while len(self._blocks) < block:
            rows = np.fromiter(islice(self._rows, BLOCK), dtype=np.min_scalar_type(len(self.each)))
            self._blocks.append(rows)
            self._before.append(self._before[-1] + np.bincount(rows, minlength=len(self.each)))
        return self._before[block]


def whole_shares(shares: Sequence[float], period: int) -> Int64[np.ndarray, " k"]:
    """Whole numbers that add up to ``period`` in proportion to ``shares``: each rounded down, or up for those with the
    largest remainders. A positive share is at least one of them."""
    given = np.asarray(shares, dtype=np.float64)
    wanted = given / given.sum() * period
    found: np.ndarray = np.where(given > 0, np.maximum(1, np.floor(wanted)), 0).astype(np.int64)
    left = period - int(found.sum())
    order = np.argsort(-(wanted - found), kind="stable")
    if left >= 0:
        found[order[:left]] += 1
    else:  # the smallest shares have been raised to one row
        found[int(found.argmax())] += left
    return found


def earliest_deadline(each: Int64[np.ndarray, " k"], period: int) -> Iterator[int]:
    """The sources of the rows of one period, in order; source s has ``each[s]`` of them."""
    # Row j of a source with p rows in a period P may stand from place floor(j P / p) to before ceil((j + 1) P / p).
    waiting = [(0, source) for source, p in enumerate(each.tolist()) if p]
    ready: list[tuple[int, int]] = []
    shares, done = each.tolist(), [0] * len(each)
    heapify(waiting)
    for place in range(period):
        while waiting and waiting[0][0] <= place:
            _, source = heappop(waiting)
            heappush(ready, (-(-(done[source] + 1) * period // shares[source]), source))
        _, source = heappop(ready)
        done[source] += 1
        if done[source] < shares[source]:
            heappush(waiting, (done[source] * period // shares[source], source))
        yield source


class _Phase(NamedTuple):
    """Rows during which the same sources are read.

    Attributes:
        first: row with which it begins.
        before: rows of each source before it.
        shares: of its rows.
    """

    first: int
    before: Int64[np.ndarray, " k"]
    shares: Schedule | None

    @property
    def schedule(self) -> Schedule:
        """The schedule of its rows. Raises `DataError`: every source has reached its limit before."""
        if self.shares is None:
            raise DataError(f"every source has been read as often as it may be after {self.first:,} rows.",
                            where="data.sources", remedy="Raise max_epochs, or train for fewer steps.")
        return self.shares


class MixedOrder:
    """The source of every row, and its number in that source: a function of the shares and limits alone.

    Once a source has had as many rows as it may, the others share what follows in proportion to their shares. Within
    one set of sources each has its share of the rows of every prefix to within one row (`Schedule`).

    Args:
        shares: of the rows, by source.
        limits: the most rows of each source; None: any number.
        period: see `Schedule`.

    Attributes:
        total: rows until every source has reached its limit; None: there is no end.
    """

    def __init__(self, shares: Sequence[float], limits: Sequence[int | None], period: int = PERIOD) -> None:
        self._shares, self._limits, self._period = np.asarray(shares, dtype=np.float64), list(limits), period
        read = [limit for share, limit in zip(self._shares, limits, strict=True) if share > 0]
        self.total = sum(limit for limit in read if limit is not None) if None not in read else None
        self._phases: list[_Phase] = []
        self._ends: list[int | None] = []
        self._add(0, np.zeros(len(self._shares), dtype=np.int64))

    def rows(self, first: int, last: int) -> MixtureRows:
        """The rows from ``first`` to before ``last``. Raises `DataError`: every source has reached its limit before."""
        none = np.array([], dtype=np.int64)
        pieces, place = [MixtureRows(none, none)], 0
        while first < last:
            phase, end = self._phases[place], self._end(place, last)
            stop = last if end is None else min(end, last)
            if first < stop:
                drawn = phase.schedule.rows(first - phase.first, stop - phase.first)
                pieces.append(MixtureRows(drawn.source, drawn.number + phase.before[drawn.source]))
                first = stop
            place += 1
        return MixtureRows(*map(np.concatenate, zip(*pieces, strict=True)))

    def counts(self, n: int) -> Int64[np.ndarray, " k"]:
        """How many of the first ``n`` rows are of each source. Raises `DataError`: as `rows`."""
        place = 0
        while (end := self._end(place, n)) is not None and end < n:
            place += 1
        phase = self._phases[place]
        found: np.ndarray = phase.before + phase.schedule.counts(n - phase.first)
        return found

    def _end(self, place: int, needed: int) -> int | None:
        """The row with which a phase ends, where it ends before row ``needed``; None where it does not. The phase after
        it is made."""
        if self._ends[place] is None:
            phase = self._phases[place]
            ends = [end for source in np.flatnonzero(phase.schedule.each).tolist()
                    if (end := self._reached(phase, source, needed)) is not None]
            if not ends:
                return None
            self._ends[place] = end = phase.first + min(ends)
            self._add(end, phase.before + phase.schedule.counts(min(ends)))
        return self._ends[place]

    def _reached(self, phase: _Phase, source: int, needed: int) -> int | None:
        """How many rows of a phase there are when a source has reached its limit, if that is before row ``needed``."""
        limit = self._limits[source]
        if limit is None:
            return None
        left = limit - int(phase.before[source])
        most = needed - phase.first
        # A source is never a whole row ahead of its share.
        if most <= (left - 1) * self._period // int(phase.schedule.each[source]):
            return None
        if int(phase.schedule.counts(most)[source]) < left:
            return None
        low, high = 0, most
        while low < high:
            middle = (low + high) // 2
            if int(phase.schedule.counts(middle)[source]) < left:
                low = middle + 1
            else:
                high = middle
        return low

    def _add(self, first: int, before: Int64[np.ndarray, " k"]) -> None:
        left = [limit is None or int(had) < limit for limit, had in zip(self._limits, before, strict=True)]
        shares = np.where(left, self._shares, 0.0)
        schedule = Schedule(shares.tolist(), self._period) if shares.sum() > 0 else None
        self._phases.append(_Phase(first, before, schedule))
        self._ends.append(None)

"""The rows of a mixture in order: shares that hold at every prefix, and sources that end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Int64

from weft.core.errors import DataError
from weft.data.apportionment import PERIOD, MixtureRows, Schedule


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
        """The schedule of its rows.

        Raises:
            DataError: every source has reached its limit before.
        """
        if self.shares is None:
            raise DataError(f"every source has been read as often as it may be after {self.first:,} rows.",
                            where="data.sources", remedy="Raise max_epochs, or train for fewer steps.")
        return self.shares


@final
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
        """The rows from ``first`` to before ``last``.

        Raises:
            DataError: every source has reached its limit before.
        """
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
        """How many of the first ``n`` rows are of each source.

        Raises:
            DataError: as `rows`.
        """
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

"""How long rows wait for a piece of a long prompt, how long it is, and when a full queue has moved on.

A piece beside rows that are continued is interrupted between its operations, and they go on, so that the time between
two of their tokens is `BOUND` times that of their steps without a piece, whatever the machine, the model and the length
of the prompt so far. No operation can be interrupted, so a piece has as many tokens, a power of two, as keep the
longest one within half of what a piece has between two steps. All of it follows measured times.
"""

from __future__ import annotations

from typing import final

BOUND = 2.5
"""The time between two tokens beside a piece, in times of a step without one; it varies, and three times are wanted."""
SHARE, FIRST = 0.5, 0.05
"""The least time between two steps that a piece has, in times of a step (a piece takes the caches of a processor from
the rows, so that nothing of their bound may be left), and in seconds where no step has been measured."""
LEAST = 32
"""The fewest tokens of a piece: a call reads all weights, so that fewer tokens take hardly less time."""
PATIENCE = 64
"""Pieces after one that was too long before a longer one is tried: what is behind a piece only grows."""
MEMORY = 0.25
"""Weight of the newest measurement in the running averages."""


@final
class Pace:
    """The times and lengths of pieces, and running averages of the time and the rows of a step.

    Args:
        most: maximum number of tokens of a piece.
    """

    def __init__(self, most: int) -> None:
        self._most, self._piece = most, min(most, LEAST)
        self._quiet = dict[int, float]()  # the time of a step without a piece, by its number of rows
        self._per_step, self._rows, self._number = 0.0, 0.0, 0  # the number of rows is that of the last step
        self._began = self._looked = 0.0
        self._longest = self._before = 0.0  # the longest operation of this piece, and of the one before it
        self._late = self._patience = 0

    def piece(self, beside: bool) -> int:
        """The number of tokens of the next piece. ``beside``: whether rows are continued meanwhile."""
        return self._piece if beside else self._most

    def begin(self, now: float) -> None:
        """Take note that a piece begins."""
        self._before, self._longest = self._longest, 0.0
        self.go_on(now)

    def due(self, now: float) -> bool:
        """Whether rows are to be continued before the next operation of the piece, which may be as long as any."""
        self._longest, self._looked = max(self._longest, now - self._looked), now
        share = self._share()
        return now - self._began >= share - min(max(self._longest, self._before), share / 2)

    def go_on(self, now: float) -> None:
        """Take note that rows were continued and the piece goes on."""
        self._began = self._looked = now

    def read(self, tokens: int) -> None:
        """Take note that a piece was read beside rows. Where its length had been kept before, being late once says
        nothing: any process may have had the processor meanwhile."""
        share = self._share()
        self._patience -= 1
        self._late = self._late + 1 if self._longest > share / 2 else 0
        if self._late == 2:
            self._piece, self._patience, self._late = max(min(self._most, LEAST), self._piece // 2), PATIENCE, 0
        elif self._longest < share / 4 and tokens >= self._piece and self._patience <= 0:
            self._piece, self._late = min(self._most, self._piece * 2), 1

    def stepped(self, rows: int, seconds: float, beside: bool) -> None:
        """Take note that so many rows were continued by a token. ``beside``: whether a piece is being read."""
        self._number, self._per_step, self._rows = rows, _mean(self._per_step, seconds), _mean(self._rows, rows)
        if not beside:
            self._quiet[rows] = _mean(self._quiet.get(rows, 0.0), seconds)

    def seconds(self, tokens: int) -> float:
        """The time after which the queue has probably moved on: that of a tenth of ``tokens``, at least a second."""
        return max(1.0, tokens / 10 * self._per_step / self._rows) if self._rows else 1.0

    def _share(self) -> float:
        """The time that a piece has between two steps; where none has been measured, until it is seen who waits."""
        step = self._per_step
        return max(SHARE * step, BOUND * self._quiet.get(self._number, step) - step) if step else FIRST


def _mean(before: float, now: float) -> float:
    """The running average with one more measurement, of which one that took far longer counts as twice the average."""
    return before + MEMORY * (min(now, 2 * before) - before) if before else now

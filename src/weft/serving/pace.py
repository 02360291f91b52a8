"""How long a piece of a long prompt is, and when a full queue has moved on, from measured times.

Rows that are continued wait while a piece of a prompt is read. So beside such rows a piece takes `SHARE` times the time
of their step, whatever the machine, the model and the length of the prompt so far; its number of tokens is doubled and
halved until it does. Numbers of tokens are powers of two, for which libraries keep few kernels.
"""

from __future__ import annotations

from typing import final

SHARE = 1.5
"""The time of a piece beside rows that are continued, in times of their step."""
LEAST = 32
"""The fewest tokens of a piece: a call reads all weights, so that fewer tokens take hardly less time."""
MEMORY = 0.25
"""Weight of the newest measurement in the running averages."""


@final
class Pace:
    """The length of pieces, and running averages of the time and the rows of a step.

    Args:
        most: maximum number of tokens of a piece.
    """

    def __init__(self, most: int) -> None:
        self._most, self._piece = most, min(most, LEAST)
        self._per_step: float | None = None
        self._rows: float | None = None

    def piece(self, beside: bool) -> int:
        """The number of tokens of the next piece. ``beside``: whether rows are continued meanwhile."""
        return self._piece if beside else self._most

    def read(self, tokens: int, seconds: float) -> None:
        """Take note of the time of a piece that was read beside rows."""
        if self._per_step is None or tokens < self._piece:
            return
        allowed = SHARE * self._per_step
        if seconds > allowed:
            self._piece = max(min(self._most, LEAST), self._piece // 2)
        elif seconds < allowed / 2:
            self._piece = min(self._most, self._piece * 2)

    def stepped(self, rows: int, seconds: float) -> None:
        """Take note that so many rows were continued by a token."""
        self._per_step = _mean(self._per_step, seconds)
        self._rows = _mean(self._rows, rows)

    def seconds(self, tokens: int) -> float:
        """The time after which the queue has probably moved on: that of a tenth of ``tokens``, at least a second."""
        if self._per_step is None or not self._rows:
            return 1.0
        return max(1.0, tokens / 10 * self._per_step / self._rows)


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + MEMORY * (now - before)

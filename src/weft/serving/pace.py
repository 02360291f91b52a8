"""How many tokens of prompts are read between two steps of the rows that are continued, from measured times.

A row that is continued waits while a prompt is read. So beside such rows a step reads as many tokens as take `SHARE`
times the time of their step, whatever the machine, the model and the length of the prompt so far: a token that is
`1 + SHARE` steps late is the worst that a long prompt does to them. Numbers of tokens are powers of two, for which
libraries keep few kernels.
"""

from __future__ import annotations

from typing import final

SHARE = 1.5
"""Time for prompts beside the rows that are continued, in times of their step."""
LEAST = 16
"""The fewest tokens of prompts a step: fewer are not read faster than these."""
MEMORY = 0.25
"""Weight of the newest measurement in the running averages."""


@final
class Pace:
    """Running averages of the time of a prompt's token and of a step.

    Args:
        most: maximum number of tokens of prompts between two steps.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._per_token: float | None = None
        self._per_step: float | None = None
        self._rows: float | None = None

    def tokens(self, beside: bool) -> int:
        """The number of tokens of prompts to read now. ``beside``: whether rows are continued meanwhile."""
        if not beside or self._per_token is None or self._per_step is None:
            return self._most
        fit = int(SHARE * self._per_step / max(self._per_token, 1e-9))
        return min(self._most, max(LEAST, 1 << (fit.bit_length() - 1) if fit else 0))

    def read(self, tokens: int, seconds: float) -> None:
        """Take note that so many tokens of prompts were read."""
        self._per_token = _mean(self._per_token, seconds / tokens)

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

"""Stability: very long rows stay finite, do not drift with the cuts, and need no more memory than they declare."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from weft.core.layer import LayerState
from weft.core.span import Span
from weft.laws.length import allowed
from weft.laws.report import Finding, compare
from weft.laws.subject import Subject

LAW = "stability"
FAR = 100_000
"""Tokens of the row."""

PIECE = 160
"""Tokens of a call."""

BEHIND = (PIECE, 67, 150, PIECE, 31)
"""Tokens by which the second row advances in turn while the first advances by `PIECE`."""


def is_bounded(subject: Subject) -> bool:
    """Whether it has a state and that does not grow, so that a token costs no more than the one before it."""
    if not subject.stateful:
        return False
    source = subject.memory(1, torch.Generator().manual_seed(0))
    return all(spec.grows is None for _, spec in subject.start(1, source, None, 1).tensors().values())


def stability(subject: Subject, generator: torch.Generator, tokens: int = FAR) -> Iterator[Finding]:
    """One sequence in two rows that advance by different counts: they agree to the end, and the state is as large as
    it was. Only where the state is bounded.

    Args:
        subject: what is examined.
        generator: of the inputs.
        tokens: of the row.
    """
    if not is_bounded(subject):
        return
    steps = allowed(subject, tokens)
    memory = subject.memory(1, generator)
    source = None if memory is None else memory.select(torch.tensor([0, 0], device=memory.h.device))
    x = subject.inputs(1, steps, generator)
    rows, sizes = Rows(subject, steps), []
    state: LayerState | None = subject.start(2, source, None, steps)
    with torch.inference_mode():
        for counts in _plan(steps):
            state = rows.advance(x, state, counts)
            sizes.append(state.nbytes())
    yield Finding(LAW, f"two ways of cutting {steps:,} tokens", rows.worst, subject.bound, rows.token)
    yield Finding(LAW, f"growth of the state from {PIECE} to {steps:,} tokens, in bytes", float(sizes[-1] - sizes[0]),
                  0.5)


def _plan(steps: int) -> Iterator[tuple[int, int]]:
    """Counts of the two rows by call, until both have consumed ``steps``."""
    left, turn = [steps, steps], 0
    while any(left):
        counts = min(left[0], PIECE), min(left[1], PIECE if not left[0] else BEHIND[turn % len(BEHIND)])
        left, turn = [left[0] - counts[0], left[1] - counts[1]], turn + 1
        yield counts


@final
class Rows:
    """The two rows: where they are, and the outputs that wait for the row behind.

    Attributes:
        worst: the largest difference so far.
        token: the first token that exceeded the bound, counted from 1.
    """

    def __init__(self, subject: Subject, steps: int) -> None:
        self._subject, self._steps = subject, steps
        self._at, self._waiting, self._compared = [0, 0], [[], []], 0  # type: tuple[list[int], list[list[Tensor]], int]
        self.worst, self.token = 0.0, None  # type: tuple[float, int | None]

    def advance(self, x: Tensor, state: LayerState | None, counts: tuple[int, int]) -> LayerState:
        """Run the next ``counts`` tokens of both rows of ``x`` [1,N,...]."""
        width = max(counts)
        chunks = []
        for at in self._at:
            chunk = x[0, at:at + width]
            missing = width - chunk.shape[0]
            chunks.append(torch.cat([chunk, x[0, :missing]]) if missing else chunk)
        count = None if counts == (width, width) else torch.tensor(counts, device=x.device)
        out = self._subject.call(torch.stack(chunks), state, Span(count=count))
        assert out.state is not None, "a call with a state returns one"
        for b, size in enumerate(counts):
            self._waiting[b].append(out.y[b, :size])
            self._at[b] += size
        self._compare()
        return out.state

    def _compare(self) -> None:
        """What both rows have reached."""
        first, second = (torch.cat(parts) for parts in self._waiting)
        both = min(first.shape[0], second.shape[0])
        found = compare(LAW, "", second[None, :both], first[None, :both], self._subject.bound)
        if not math.isclose(found.difference, 0.0) and found.difference > self.worst:
            self.worst = found.difference
        if self.token is None and found.token is not None:
            self.token = self._compared + found.token
        self._waiting = [[first[both:]], [second[both:]]]
        self._compared += both

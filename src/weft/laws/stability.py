"""Stability: the outputs of a very long row do not depend on how it is cut, and a bounded state keeps its size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import final

import torch
from torch import Tensor

from weft.core.declarations import Trait
from weft.core.layer import LayerState, borders_of
from weft.core.span import Memory, Span
from weft.laws.in_pieces import in_pieces
from weft.laws.length import allowed
from weft.laws.report import COUNT, Finding, compare
from weft.laws.subject import Subject

LAW = "stability"
FAR = 100_000
"""Tokens of the very long row."""

CALLS, ROUND = 3_100, 16
"""Calls of one token after which a part must still compute the same, and tokens of the row that is run again."""

PIECE, NEAR_PIECE = 1024, 128
"""Tokens of a call; the smaller for parts that declare a border, as a window costs the square of a call's tokens."""


def is_bounded(subject: Subject) -> bool:
    """Whether the subject has a state and no field of it grows, so that all tokens take equally long."""
    if not subject.stateful:
        return False
    source = subject.memory(1, torch.Generator().manual_seed(0))
    return all(spec.grows is None for _, spec in subject.start(1, source, None, 1).tensors().values())


def stability(subject: Subject, generator: torch.Generator, tokens: int = FAR) -> Iterator[Finding]:
    """One sequence in two rows that advance by different counts: their outputs agree to the end, and the state keeps
    its size. Only for subjects with a bounded state.

    Args:
        tokens: tokens of the row.
    """
    if not is_bounded(subject):
        return
    steps = allowed(subject, tokens)
    memory = subject.memory(1, generator)
    source = None if memory is None else memory.select(torch.tensor([0, 0], device=memory.h.device))
    x = subject.inputs(1, steps, generator)
    piece = NEAR_PIECE if borders_of(subject.module) else PIECE
    rows, sizes = RowPair(subject), []
    state: LayerState | None = subject.start(2, source, None, steps)
    with torch.inference_mode():
        for counts in _plan(steps, piece):
            state = rows.advance(x, state, counts)
            sizes.append(state.nbytes())
    yield Finding(LAW, f"two ways of cutting {steps:,} tokens", rows.worst, subject.bound, rows.token)
    yield Finding(LAW, f"growth of the state from {piece:,} to {steps:,} tokens, in bytes", float(sizes[-1] - sizes[0]),
                  COUNT)


def worn(subject: Subject, generator: torch.Generator, calls: int = CALLS) -> Iterator[Finding]:
    """After ``calls`` calls of one token a row has the outputs that it had before them, so that nothing that a module
    counts or keeps from call to call changes what it computes. The row begins anew every `ROUND` calls."""
    if not (calls and subject.stateful) or Trait.PREFIX_FIRST in subject.traits:
        return
    row = allowed(subject, ROUND)
    x, memory = subject.inputs(1, row, generator), subject.memory(1, generator)
    with torch.inference_mode():
        first = _one_at_a_time(subject, x, memory)
        for _ in range(calls // row):
            _one_at_a_time(subject, x, memory)
        last = _one_at_a_time(subject, x, memory)
    yield compare(LAW, f"{row} calls of one token, after {calls // row * row:,} others", last, first, subject.bound)


def _one_at_a_time(subject: Subject, x: Tensor, memory: Memory | None) -> Tensor:
    state = subject.start(1, memory, None, x.shape[1])
    return in_pieces(subject, x, state, [1] * x.shape[1])[0]


def _plan(steps: int, piece: int) -> Iterator[tuple[int, int]]:
    """The counts of both rows in each call, until both have read ``steps`` tokens: the first advances by ``piece``, the
    second falls behind and catches up at the end."""
    left, behind = [steps, steps], cycle((piece, piece * 5 // 12, piece - 9, piece, piece // 5))
    while any(left):
        counts = min(left[0], piece), min(left[1], next(behind) if left[0] else piece)
        left = [left[0] - counts[0], left[1] - counts[1]]
        yield counts


@final
class RowPair:
    """Runs the two rows, and compares the outputs of tokens that both have read.

    Attributes:
        worst: the largest difference so far.
        token: the first token that exceeded the bound, counted from 1; None if none has.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._at, self._compared = [0, 0], 0
        self._waiting: list[list[Tensor]] = [[], []]
        self.worst = 0.0
        self.token: int | None = None

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
        """Compare the tokens that both rows have read since the last comparison."""
        first, second = (torch.cat(parts) for parts in self._waiting)
        both = min(first.shape[0], second.shape[0])
        finding = compare(LAW, "", second[None, :both], first[None, :both], self._subject.bound)
        self.worst = max(self.worst, finding.difference)
        if self.token is None and finding.token is not None:
            self.token = self._compared + finding.token
        self._waiting = [[first[both:]], [second[both:]]]
        self._compared += both

"""The laws past the longest border that a subject has.

Defects begin at borders: the chunk of a scan, the edge of a window, a buffer that wraps, the context. A law that runs
on eleven tokens proves eleven tokens, so every law also runs on rows of 1.5 times the longest border, with few rows and
few cuts: at and around the borders, and at round sizes, where borders that nobody declared are likely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.layer import LayerState, borders_of
from weft.core.model import Model
from weft.core.span import Memory, Span
from weft.core.traits import Trait
from weft.laws.choices import Choices, watched
from weft.laws.pieces import in_pieces
from weft.laws.report import Finding
from weft.laws.subject import Subject

LEAST = 257
"""Tokens of the longest border that a part is taken to have where it declares less: one more than the largest chunk in
common use."""

ROUND = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Sizes at which borders are likely, whatever a part declares."""

SINGLE = 400
"""Tokens that are at most run one by one, which is what takes time."""

MOST_MARKS = 12
"""Places at which a row is cut; the farthest are kept."""

GRADIENT_STEPS = 512
"""Tokens up to which gradients are cheap enough to be compared."""


def length_past(subject: Subject, longest: int) -> int:
    """Tokens of a row 1.5 times as long as the longest border, or ``longest`` if that is less, as far as positions
    go."""
    borders = {LEAST, *borders_of(subject.module)}
    if isinstance(subject.module, Model):
        borders.add(subject.module.config.context)
    return allowed(subject, min(longest, math.ceil(1.5 * max(borders))))


def allowed(subject: Subject, steps: int) -> int:
    """``steps``, or what the subject's positions allow if that is less."""
    return steps if subject.limit is None else min(steps, subject.limit)


@dataclass(frozen=True)
class Row:
    """What the laws at length share: two rows of tokens, run whole once.

    Attributes:
        subject: what is examined; its ``steps`` are the length of the rows.
        x: inputs [B,T,...].
        memory: what cross-attention reads.
        prefix: [B,T], True in a prefix that is seen both ways; None without one.
        y: the outputs of a call without a state.
        choices: what the layers that choose chose in it.
        marks: lengths of the pieces that end at a border.
        generator: of what is drawn besides.
    """

    subject: Subject
    x: Tensor
    memory: Memory | None
    prefix: Tensor | None
    y: Tensor
    choices: Choices
    marks: tuple[int, ...]
    generator: torch.Generator

    @property
    def steps(self) -> int:
        """T."""
        return self.subject.steps

    def span(self, at: int, size: int, reserved: bool) -> Span:
        """What the piece of ``size`` tokens from ``at`` on does; with the plain facts where buffers are reserved."""
        span = Span(prefix=None if self.prefix is None else self.prefix[:, at:at + size])
        return span.replace(fresh=at == 0, bound=at + size, uniform=True) if reserved else span


def row(subject: Subject, generator: torch.Generator) -> Row:
    """Two random rows of ``subject.steps`` tokens and their outputs."""
    x, memory = subject.inputs(2, subject.steps, generator), subject.memory(2, generator)
    prefix = None
    if Trait.PREFIX_FIRST in subject.traits:
        prefix = (torch.arange(subject.steps)[None] < torch.tensor([[3], [0]])).to(x.device)
    with torch.no_grad(), watched(subject.module) as choices:
        y = subject.whole(x, memory, Span(prefix=prefix)).y
    return Row(subject, x, memory, prefix, y, choices, _marks(subject), generator)


def finite(y: Tensor, subject: Subject) -> Finding:
    """The outputs [B,T,...] of the whole row are numbers; a model of counts may say minus infinity."""
    wrong = ~y.isfinite() if subject.differentiable else y.isnan()
    tokens = wrong.transpose(0, 1).flatten(1).any(1).nonzero().flatten()
    return Finding("finite", f"outputs that are no numbers in a row of {subject.steps:,} tokens", float(wrong.sum()),
                   0.5, int(tokens[0]) + 1 if tokens.numel() else None)


def _marks(subject: Subject) -> tuple[int, ...]:
    wanted = {*ROUND, *borders_of(subject.module)}
    inside = sorted(mark for mark in wanted if 5 < mark < subject.steps - 1)
    return tuple(inside[-(MOST_MARKS if subject.thorough else 3):])


def around(marks: tuple[int, ...], steps: int) -> list[int]:
    """Sizes of pieces that end one token before each mark, at it and one after."""
    ends = sorted({steps, *(mark + more for mark in marks for more in (-1, 0, 1) if 0 < mark + more < steps)})
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def across(steps: int) -> list[int]:
    """Sizes of pieces that are no multiple of each other: an empty one, a long one, some of an odd size, single tokens
    at the end."""
    ones = min(9, steps // 4)
    sizes, left = [3, 0, steps // 3], steps - ones - 3 - steps // 3
    piece = max(37, steps // 9 | 1)
    sizes += [piece] * (left // piece) + [left % piece]
    return sizes + [1] * ones


def one_by_one(steps: int) -> list[int]:
    """Single tokens, and what lies beyond `SINGLE` of them in one piece."""
    first = min(steps - 3, SINGLE)
    return [3, *[1] * first, steps - 3 - first]


def row_in_pieces(row: Row, sizes: list[int], reserved: bool = False, subject: Subject | None = None,
                  inputs: tuple[Tensor, Memory | None] | None = None) -> tuple[Tensor, LayerState]:
    """The outputs of consecutive pieces of a row that thread a state, and the last state.

    Args:
        row: what is run.
        sizes: tokens of each piece.
        reserved: into buffers of the row's length, with plain facts.
        subject: runs it, where it is not the row's own (another dtype or form).
        inputs: x and memory, where they are not the row's own.
    """
    runner, (x, memory) = subject or row.subject, inputs or (row.x, row.memory)
    state = runner.start(x.shape[0], memory, sum(sizes) if reserved else None, row.steps)
    return in_pieces(runner, x, state, sizes, lambda first, end: row.span(first, end - first, reserved))

"""Rows that are longer than the longest border of a subject, for the laws in `weft.laws.long_laws`.

Many defects begin at a border: the chunk of a scan, the edge of a window, a buffer that wraps, the context. Laws on
eleven tokens do not reach them. So the laws also run on rows of 1.5 times the longest border, with few rows and few
cuts: around the borders that parts declare, and around powers of two, where undeclared borders are likely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from weft.core.declarations import Trait
from weft.core.layer import LayerState, borders_of
from weft.core.model import Model
from weft.core.span import Memory, Span
from weft.laws.in_pieces import Choices, in_pieces, recorded
from weft.laws.report import COUNT, Finding
from weft.laws.subject import Subject

LEAST = 257
"""The longest border that is assumed if a part declares none as long, in tokens: one more than the largest chunk in
common use."""

ROUND = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Tokens at which borders are likely even if a part does not declare them."""

SINGLE = 400
"""The tokens from the beginning of a row that are run one at a time: few, because such calls take most of the time."""

BESIDE = 3
"""Tokens before and after a border that are run one at a time, however far from the beginning it lies."""

MOST_MARKS = 12
"""The most borders around which a row is cut; those at the end of the row take precedence."""

GRADIENT_STEPS = 512
"""The most tokens of a row whose gradients are compared; longer ones take too long."""


def length_past(subject: Subject, longest: int) -> int:
    """Tokens of a row of 1.5 times the longest border, but at most ``longest`` and at most what the subject's positions
    allow."""
    borders = {LEAST, *borders_of(subject.module)}
    if isinstance(subject.module, Model):
        borders.add(subject.module.config.context)
    return allowed(subject, min(longest, math.ceil(1.5 * max(borders))))


def allowed(subject: Subject, steps: int) -> int:
    """``steps``, or the number of tokens that the subject's positions allow, if that is less."""
    return steps if subject.limit is None else min(steps, subject.limit)


@dataclass(frozen=True)
class LongRows:
    """Two rows of tokens that the laws on long rows share, and the outputs of one call with all of them.

    Attributes:
        subject: the subject, whose ``steps`` is the length T of the rows.
        x: the inputs [B,T,...].
        memory: the source that cross-attention reads, or None.
        prefix: [B,T], True in a bidirectional prefix; None without one.
        y: the outputs [B,T,...] of a call without a state.
        choices: the experts that were chosen in that call.
        marks: the borders around which the row is cut, in tokens.
        singles: tokens from the beginning that are run one at a time.
        late: the state near the end of the row, once a law has computed it (see `late_state`).
    """

    subject: Subject
    x: Tensor
    memory: Memory | None
    prefix: Tensor | None
    y: Tensor
    choices: Choices
    marks: tuple[int, ...]
    generator: torch.Generator
    singles: int = SINGLE
    late: list[LayerState] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """T."""
        return self.subject.steps

    def span(self, at: int, size: int, reserved: bool) -> Span:
        """The span of the piece of ``size`` tokens from ``at`` on; with plain facts if buffers are reserved."""
        span = Span(prefix=None if self.prefix is None else self.prefix[:, at:at + size])
        return span.replace(fresh=at == 0, bound=at + size, uniform=True) if reserved else span


def row(subject: Subject, generator: torch.Generator, singles: int = SINGLE) -> LongRows:
    """Two random rows of ``subject.steps`` tokens and their outputs."""
    x, memory = subject.inputs(2, subject.steps, generator), subject.memory(2, generator)
    prefix = None
    if Trait.PREFIX_FIRST in subject.traits:
        prefix = (torch.arange(subject.steps)[None] < torch.tensor([[3], [0]])).to(x.device)
    with torch.no_grad(), recorded(subject.module) as choices:
        y = subject.whole(x, memory, Span(prefix=prefix)).y
    inside = sorted(mark for mark in {*ROUND, *borders_of(subject.module)} if 5 < mark < subject.steps - 1)
    marks = tuple(inside[-(MOST_MARKS if subject.thorough else 3):])
    return LongRows(subject, x, memory, prefix, y, choices, marks, generator, singles)


def finite(y: Tensor, subject: Subject) -> Finding:
    """The finding that the outputs [B,T,...] are finite; a model fitted by counting may also give minus infinity."""
    wrong = ~y.isfinite() if subject.differentiable else y.isnan()
    tokens = wrong.transpose(0, 1).flatten(1).any(1).nonzero().flatten()
    return Finding("finite", f"outputs that are not finite in a row of {subject.steps:,} tokens", float(wrong.sum()),
                   COUNT, int(tokens[0]) + 1 if tokens.numel() else None)


def around(marks: tuple[int, ...], steps: int) -> list[int]:
    """Sizes of pieces that end one token before each mark, at the mark, and one token after it."""
    ends = sorted({steps, *(mark + more for mark in marks for more in (-1, 0, 1) if 0 < mark + more < steps)})
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def across(steps: int) -> list[int]:
    """Sizes of pieces that are not multiples of each other: an empty piece, a long one, several of an odd size, and
    single tokens at the end."""
    ones = min(9, steps // 4)
    sizes, left = [3, 0, steps // 3], steps - ones - 3 - steps // 3
    piece = max(37, steps // 9 | 1)
    sizes += [piece] * (left // piece) + [left % piece]
    return sizes + [1] * ones


def one_by_one(marks: tuple[int, ...], steps: int, singles: int = SINGLE) -> list[int]:
    """Sizes of a first piece of three tokens, of ``singles`` pieces of one token, and of pieces of one token across
    every later mark, to which the state is carried by pieces of many tokens. The row ends with single tokens too."""
    first = min(3, steps)
    least = min(first + singles, steps)
    alone = {*range(first, least), *range(max(steps - BESIDE, first), steps),
             *(at for mark in marks for at in range(max(mark - BESIDE, first), min(mark + BESIDE, steps)))}
    ends = [first, *(at for at in range(first + 1, steps) if at in alone or at - 1 in alone), steps]
    return [first, *(end - begin for begin, end in pairwise(ends))]


def late_state(row: LongRows) -> tuple[int, LayerState]:
    """Tokens up to near the end of the row, and a copy of the state after them, which the laws of a row share because
    it takes as long as the whole row."""
    early = max(row.steps - 7, 3)
    if not row.late:
        with torch.no_grad():
            row.late.append(row_in_pieces(row, [early])[1])
    return early, row.late[0].clone()


def row_in_pieces(row: LongRows, sizes: list[int], reserved: bool = False, subject: Subject | None = None,
                  inputs: tuple[Tensor, Memory | None] | None = None) -> tuple[Tensor, LayerState]:
    """The outputs of consecutive pieces of a row, each continuing from the state of the one before, and the last state.

    Args:
        row: the row.
        sizes: tokens of each piece.
        reserved: whether buffers of the row's length are reserved and plain facts given.
        subject: the subject to run instead of the row's own (one in another dtype or form).
        inputs: x and memory to use instead of the row's own.
    """
    runner, (x, memory) = subject or row.subject, inputs or (row.x, row.memory)
    state = runner.start(x.shape[0], memory, sum(sizes) if reserved else None, row.steps)
    return in_pieces(runner, x, state, sizes, lambda first, end: row.span(first, end - first, reserved))

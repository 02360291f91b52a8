"""Running a sequence in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from weft.core.layer import LayerState
from weft.core.output import Output
from weft.core.span import Span
from weft.laws.subject import Subject


def advance(subject: Subject, x: Tensor, state: LayerState, span: Span | None = None) -> tuple[Tensor, LayerState]:
    """The outputs of one call with a state, and the state after it."""
    out: Output[LayerState] = subject.call(x, state, Span() if span is None else span)
    assert out.state is not None, "a call with a state returns one"
    return out.y, out.state


def in_pieces(subject: Subject, x: Tensor, state: LayerState, sizes: Sequence[int],
              span: Callable[[int, int], Span] = lambda first, end: Span()) -> tuple[Tensor, LayerState]:
    """The outputs of consecutive pieces, and the state after the last.

    Args:
        subject: the subject to run.
        x: the inputs [B,T,...].
        state: the state before the first piece.
        sizes: tokens of each piece.
        span: gives the span of the piece from token ``first`` up to ``end``.
    """
    outs, at = [], 0
    for size in sizes:
        y, state = advance(subject, x[:, at:at + size], state, span(at, at + size))
        outs.append(y)
        at += size
    return torch.cat(outs, dim=1), state


def few_pieces(steps: int) -> list[int]:
    """Sizes of at most six pieces that add up to ``steps``: several tokens, one token, several tokens, an empty piece,
    one token, and the rest."""
    third = max(2, (steps - 2) // 3)
    sizes = [third, 1, third, 0, 1]
    while sum(sizes) > steps:
        sizes.pop()
    return [*sizes, steps - sum(sizes)]

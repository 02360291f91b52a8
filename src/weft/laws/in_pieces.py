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


def in_uneven_pieces(subject: Subject, x: Tensor, state: LayerState, plan: Sequence[Sequence[int]], *,
                     prefix: Tensor | None = None, begins: Tensor | None = None) -> Tensor:
    """The outputs [B,T,...] of calls in which rows advance by counts of their own.

    Args:
        subject: the subject to run.
        x: the inputs [B,T,...].
        state: the state before the first call.
        plan: the counts of all rows, by call; those of each row add up to T.
        prefix: [B,T], True in a bidirectional prefix; None without one.
        begins: [B,T], True where a document begins; None without documents.
    """
    rows: list[list[Tensor]] = [[] for _ in range(x.shape[0])]
    at = torch.zeros(x.shape[0], 1, dtype=torch.int64)
    each = torch.arange(x.shape[0], device=x.device)[:, None]
    for counts in plan:
        own = torch.arange(max([*counts, 1]))[None]
        place = (at + own).clamp(max=x.shape[1] - 1).to(x.device)
        count = torch.tensor(counts, device=x.device)
        span = Span(count=count, prefix=None if prefix is None else prefix[each, place],
                    begins=None if begins is None else begins[each, place] & (own.to(x.device) < count[:, None]))
        y, state = advance(subject, x[each, place], state, span)
        for b, size in enumerate(counts):
            rows[b].append(y[b, :size])
        at += count.cpu()[:, None]
    return torch.stack([torch.cat(parts) for parts in rows])


def uneven_plan(batch: int, steps: int, first: int, generator: torch.Generator) -> list[list[int]]:
    """Counts by call and row; those of a row add up to ``steps``, and the first is at least ``first``. Every other row
    begins one call late if ``first`` is 0. Then each row in turn rests in mid-row, while the others read one token and
    while they read two. What is left is drawn."""
    resting = [[0 if row == b else size for row in range(batch)] for size in (1, 2) for b in range(batch)]
    wanted = [*([] if first else [[row % 2 for row in range(batch)]]), [max(first, 1)] * batch, *resting]
    left, plan = [steps] * batch, []
    while any(left):
        drawn = wanted.pop(0) if wanted else torch.randint(0, 5, (batch,), generator=generator).tolist()
        counts = [min(left[b], drawn[b]) for b in range(batch)]
        left = [left[b] - counts[b] for b in range(batch)]
        plan.append(counts)
    return plan


def few_pieces(steps: int) -> list[int]:
    """Sizes of at most six pieces that add up to ``steps``: several tokens, one token, several tokens, an empty piece,
    one token, and the rest."""
    third = max(2, (steps - 2) // 3)
    sizes = [third, 1, third, 0, 1]
    while sum(sizes) > steps:
        sizes.pop()
    return [*sizes, steps - sum(sizes)]

"""Running a sequence in pieces. The choices of experts in a run of a subject, and where those of two runs differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from weft.core.layer import Choice, Chooser, LayerState
from weft.core.span import Output, Span
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


@final
class Choices:
    """The choices of every `Chooser` in a module, by its path, for all tokens of a row."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[Choice]] = {}

    def add(self, place: str, choice: Choice) -> None:
        """Append the choices of the layer at ``place`` for the next tokens."""
        self._pieces.setdefault(place, []).append(choice)

    def of(self, place: str) -> Choice:
        """The choices of the layer at ``place`` for all tokens."""
        pieces = self._pieces[place]
        chosen, margin = ([piece[field] for piece in pieces] for field in (0, 1))
        return Choice(torch.cat(chosen, 1), torch.cat(margin, 1))

    def against(self, other: Choices, steps: int, *, causal: bool) -> tuple[Bool[Tensor, "B T"], float]:
        """The tokens that no different choice affects, [B,T], and the widest margin, in this run, of a choice that
        differs.

        Only the first different choice of a row counts for the margin, because later ones have different inputs.

        Args:
            other: the choices of the run to compare with.
            steps: T, of the outputs.
            causal: whether a choice affects its own and later tokens; otherwise it affects its whole row.
        """
        agreed, margin = None, 0.0
        for place in self._pieces:
            mine, theirs = self.of(place), other.of(place)
            differs = (mine.chosen.sort(-1).values != theirs.chosen.sort(-1).values).any(-1)
            along = causal and differs.shape[1] == steps
            touched = differs.cumsum(1) > 0 if along else differs.any(1, keepdim=True).expand(-1, steps)
            before = torch.ones_like(touched) if agreed is None else agreed
            # After a different choice in an earlier layer the inputs differ, so these choices do not count.
            judged = differs & (before if along else before.all(1, keepdim=True))
            if bool(judged.any()):
                first = judged & (judged.cumsum(1) == 1)
                margin = max(margin, float(mine.margin[first].max()))
            agreed = before & ~touched
        assert agreed is not None, "a subject with the trait holds a layer that chooses, and it ran"
        return agreed, margin


@contextmanager
def recorded(module: nn.Module) -> Iterator[Choices]:
    """Record the choices of the layers of ``module`` while the block runs, in the order of the calls."""
    choices = Choices()
    handles = [_record(place, part, choices) for place, part in module.named_modules() if isinstance(part, Chooser)]
    try:
        yield choices
    finally:
        for handle in handles:
            handle.remove()


def _record(place: str, part: Chooser, choices: Choices) -> torch.utils.hooks.RemovableHandle:
    def append(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs[0].shape[1]:
            choices.add(place, part.choose(inputs[0]))

    return part.register_forward_pre_hook(append)

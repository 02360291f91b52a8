"""Law 5: documents packed into one row equal each document alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from weft.core.declarations import Trait
from weft.core.span import Memory, Span
from weft.laws.gradients import GradientRun, first_run, run
from weft.laws.in_pieces import in_uneven_pieces, uneven_plan
from weft.laws.report import Finding, difference, gradient_difference
from weft.laws.subject import Subject


def packed(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Documents of several lengths, also of one token and at the end of a row, in one call, in rows of several lengths,
    and in pieces: also where a document begins with a later piece, or is all of one. In some pieces without a
    document's beginning ``begins`` is None: earlier documents must stay masked then too."""
    x = subject.inputs(3, subject.steps, generator)
    memory = subject.memory(3, generator)
    # Never in the first row; in the second also at tokens with which pieces of one token and of several begin, see
    # `_ways`; in the third also at the last token.
    begins = torch.rand((3, subject.steps), generator=generator) < 0.3
    begins[0], begins[:, 4:7], begins[1, [0, 1, 3, 7]], begins[2, -1] = False, False, True, True
    begins = begins.to(x.device)
    counts = [subject.steps] * 3
    apart, weights = first_run(subject, x, memory, generator, lambda a, m: _separate(subject, a, m, begins, counts))
    case = f"documents begin at {[row.nonzero().flatten().tolist() for row in begins]}"
    whole = run(subject, x, memory, weights, lambda a, m: subject.whole(a, m, Span(begins=begins)).y)
    yield from _findings(subject, case, whole, apart)
    yield from _counted(subject, x, memory, begins, weights, case)
    if subject.stateful and Trait.DECLARED_LENGTH not in subject.traits:
        ways = list(_ways(subject, begins, generator).items())
        if not subject.thorough:
            ways = [ways[int(torch.randint(len(ways), (), generator=generator))]]
        for name, forward in ways:
            yield from _findings(subject, f"{case}, {name}", run(subject, x, memory, weights, forward), apart)


def _ways(subject: Subject, begins: Tensor,
          generator: torch.Generator) -> dict[str, Callable[[Tensor, Memory | None], Tensor]]:
    """By a name, how rows with documents are cut into pieces. In the first way token 4 is alone in a piece, and tokens
    8 and the last begin later pieces; in the second tokens 6 and 7 are a piece in which no document begins; in the
    third rows advance by different counts and rest."""
    ways: dict[str, Callable[[Tensor, Memory | None], Tensor]] = {}
    for cuts, silent in (([3, 1, 0, 3, subject.steps - 8, 1], False), ([4, 1, 2, subject.steps - 7], True)):
        ways[f"pieces {'+'.join(map(str, cuts))}"] = partial(_pieces, subject, begins=begins, cuts=cuts, silent=silent)
    plan = uneven_plan(begins.shape[0], subject.steps, 0, generator)
    ways[f"rows advance by {plan}"] = lambda a, m: in_uneven_pieces(
        subject, a, subject.start(a.shape[0], m, None, None), plan, begins=begins)
    return ways


def _counted(subject: Subject, x: Tensor, memory: Memory | None, begins: Tensor, weights: Tensor,
             case: str) -> Iterator[Finding]:
    """Rows of several lengths with documents in them, as a packed batch of training has them."""
    counts = [subject.steps - 2, subject.steps - 3, 2]
    span = Span(begins=begins, count=torch.tensor(counts, device=x.device))
    weighed = weights.clone()
    for row, count in zip(weighed, counts, strict=True):
        row[count:] = 0  # there `_separate` returns constants, which have no gradient
    apart = run(subject, x, memory, weighed, lambda a, m: _separate(subject, a, m, begins, counts))
    both = run(subject, x, memory, weighed, lambda a, m: subject.whole(a, m, span).y)
    yield from _findings(subject, f"{case}, counts {counts}", both, apart)


def _findings(subject: Subject, case: str, actual: GradientRun, apart: GradientRun) -> Iterator[Finding]:
    yield Finding("packed", case, difference(actual.y, apart.y), subject.bound)
    if subject.differentiable:
        yield Finding("packed gradients", case, gradient_difference(actual.gradients, apart.gradients),
                      subject.gradient_bound)


def _separate(subject: Subject, x: Tensor, memory: Memory | None, begins: Tensor, counts: list[int]) -> Tensor:
    """The outputs of every document in a row of its own, and zeros beyond the rows' counts; documents of equal length
    are the rows of one call."""
    y: dict[tuple[int, int], Tensor] = {}
    for length, places in _documents(begins, counts).items():
        rows = torch.stack([x[b, a:a + length] for b, a in places])
        own = None if memory is None else memory.select(torch.tensor([b for b, _ in places], device=x.device))
        y |= zip(places, subject.whole(rows, own).y, strict=True)
    some = next(iter(y.values()))
    return torch.stack([torch.cat([*(y[place] for place in sorted(y) if place[0] == b),
                                   some.new_zeros(x.shape[1] - count, *some.shape[1:])])
                        for b, count in enumerate(counts)])


def _documents(begins: Tensor, counts: list[int]) -> dict[int, list[tuple[int, int]]]:
    """The row and the first token of every document, by the document's length."""
    documents: dict[int, list[tuple[int, int]]] = {}
    for b, (row, count) in enumerate(zip(begins, counts, strict=True)):
        starts = sorted({0, *row[:count].nonzero().flatten().tolist()})
        for a, z in zip(starts, [*starts[1:], count], strict=True):
            documents.setdefault(z - a, []).append((b, a))
    return documents


def _pieces(subject: Subject, x: Tensor, memory: Memory | None, *, begins: Tensor, cuts: list[int],
            silent: bool) -> Tensor:
    state, outs, at = subject.start(x.shape[0], memory, None, None), [], 0
    for size in cuts:
        own = begins[:, at:at + size]
        out = subject.call(x[:, at:at + size], state, Span(begins=None if silent and not own.any() else own))
        assert out.state is not None, "a call with a state returns one"
        state = out.state
        outs.append(out.y)
        at += size
    return torch.cat(outs, dim=1)

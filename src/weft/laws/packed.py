"""Law 5: documents packed into one row equal each document alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from weft.core.span import Memory, Span
from weft.core.traits import Trait
from weft.laws.gradients import Run, first_run, run
from weft.laws.report import Finding, difference, gradient_difference
from weft.laws.subject import Subject


def packed(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Documents of several lengths, also of one token and at the end of a row, in one call and in pieces. In some
    pieces without a document's beginning ``begins`` is None: earlier documents must stay masked then too."""
    x = subject.inputs(3, subject.steps, generator)
    memory = subject.memory(3, generator)
    begins = torch.rand(x.shape[:2], generator=generator) < 0.3
    begins[0], begins[1, :2], begins[:, 4:7], begins[2, -1] = False, True, False, True
    begins = begins.to(x.device)
    apart, weights = first_run(subject, x, memory, generator, lambda a, m: _separate(subject, a, m, begins))
    case = f"documents begin at {[row.nonzero().flatten().tolist() for row in begins]}"
    whole = run(subject, x, memory, weights, lambda a, m: subject.whole(a, m, Span(begins=begins)).y)
    yield from _findings(subject, case, whole, apart)
    if subject.stateful and Trait.DECLARED_LENGTH not in subject.traits:
        ways = [([3, 1, 0, subject.steps - 4], False), ([4, 1, 2, subject.steps - 7], True)]
        if not subject.thorough:
            ways = [ways[int(torch.randint(len(ways), (), generator=generator))]]
        for cuts, silent in ways:
            forward = partial(_pieces, subject, begins=begins, cuts=cuts, silent=silent)
            pieces = run(subject, x, memory, weights, forward)
            yield from _findings(subject, f"{case}, pieces {'+'.join(map(str, cuts))}", pieces, apart)


def _findings(subject: Subject, case: str, actual: Run, apart: Run) -> Iterator[Finding]:
    yield Finding("packed", case, difference(actual.y, apart.y), subject.bound)
    if subject.differentiable:
        yield Finding("packed gradients", case, gradient_difference(actual.gradients, apart.gradients),
                      subject.gradient_bound)


def _separate(subject: Subject, x: Tensor, memory: Memory | None, begins: Tensor) -> Tensor:
    """The outputs of every document in a row of its own; documents of equal length are the rows of one call."""
    y: dict[tuple[int, int], Tensor] = {}
    for length, places in _documents(begins).items():
        rows = torch.stack([x[b, a:a + length] for b, a in places])
        own = None if memory is None else memory.select(torch.tensor([b for b, _ in places], device=x.device))
        y |= zip(places, subject.whole(rows, own).y, strict=True)
    return torch.stack([torch.cat([y[place] for place in sorted(y) if place[0] == b]) for b in range(x.shape[0])])


def _documents(begins: Tensor) -> dict[int, list[tuple[int, int]]]:
    """The row and the first token of every document, by the document's length."""
    documents: dict[int, list[tuple[int, int]]] = {}
    for b, row in enumerate(begins):
        starts = sorted({0, *row.nonzero().flatten().tolist()})
        for a, z in zip(starts, [*starts[1:], begins.shape[1]], strict=True):
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

"""Law 1: a sequence run in any pieces that pass on the state equals one call, in values and gradients.
It holds in float32 too, where sums that cancel, or powers that overflow, can be wrong and are right in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from weft.core.declarations import Trait
from weft.core.span import Memory, Span
from weft.laws.gradients import GradientRun, first_run, run
from weft.laws.in_pieces import few_pieces, in_pieces, in_uneven_pieces, recorded, uneven_plan
from weft.laws.other_dtypes import agreement, cast, memory_in, tensor_in
from weft.laws.report import Finding, difference, gradient_difference
from weft.laws.subject import Subject

LAW = "split"


def split(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Cuts of every kind (single tokens, several continuations of several tokens, empty pieces), with growing and with
    reserved buffers, with and without plain facts; and rows that advance by different counts."""
    if not subject.stateful:
        return
    x = subject.inputs(3, subject.steps, generator)
    memory = subject.memory(3, generator)
    prefix = None
    if Trait.PREFIX_FIRST in subject.traits:
        sizes = torch.randint(0, 4, (x.shape[0], 1), generator=generator)
        prefix = (torch.arange(x.shape[1])[None] < sizes).to(x.device)
    span = Span(prefix=prefix)
    whole, weights = first_run(subject, x, memory, generator, lambda a, m: subject.whole(a, m, span).y)
    first = 0 if prefix is None else int(prefix.sum(1).max())
    ways = [(cuts, reserved) for cuts in _cuts(subject.steps, first, generator) for reserved in (False, True)]
    if not subject.thorough:
        ways = [ways[int(torch.randint(len(ways), (), generator=generator))]]
    for cuts, reserved in ways:
        yield from _compare(subject, x, memory, prefix, weights, whole, cuts, reserved, generator)
    yield from _uneven(subject, x, memory, prefix, weights, whole, generator)


def _cuts(steps: int, first: int, generator: torch.Generator) -> list[list[int]]:
    """Sizes of pieces that add up to ``steps``; the first piece has at least ``first`` tokens."""
    rest = steps - max(first, 1)
    ones = [max(first, 1)] + [1] * rest
    thirds = [max(first, 3), 4, 0, steps - max(first, 3) - 4]
    lead = [] if first else [0]
    cuts = torch.randint(0, 4, (steps,), generator=generator).tolist()
    random, left = [max(first, 1)], rest
    for size in cuts:
        random.append(min(size, left))
        left -= random[-1]
    return [ones, thirds, [*lead, *random, left]]


def _compare(subject: Subject, x: Tensor, memory: Memory | None, prefix: Tensor | None, weights: Tensor,
             whole: GradientRun, cuts: list[int], reserved: bool, generator: torch.Generator) -> Iterator[Finding]:
    def pieces(a: Tensor, m: Memory | None) -> Tensor:
        state = subject.start(a.shape[0], m, subject.steps if reserved else None, subject.steps)
        return in_pieces(subject, a, state, cuts, span)[0]

    def span(first: int, end: int) -> Span:
        own = Span(prefix=None if prefix is None else prefix[:, first:end])
        return own.replace(fresh=first == 0, bound=end, uniform=True) if reserved else own

    case = f"pieces {'+'.join(map(str, cuts))}{', reserved buffers and facts' if reserved else ''}"
    yield from _against(subject, x, memory, weights, whole, pieces, case, generator)


def _against(subject: Subject, x: Tensor, memory: Memory | None, weights: Tensor, whole: GradientRun,
             pieces: Callable[[Tensor, Memory | None], Tensor], case: str,
             generator: torch.Generator) -> Iterator[Finding]:
    """The pieces against one call, with gradients off, when buffers may be written in place, and on; one of the two, at
    random, if the subject is not thorough."""
    ways = [False, True] if subject.differentiable else [False]
    if not subject.thorough:
        ways = [ways[int(torch.randint(len(ways), (), generator=generator))]]
    if False in ways:
        values = run(subject, x, memory, None, pieces)
        yield Finding(LAW, f"{case}, without gradients", difference(values.y, whole.y), subject.bound)
    if True in ways:
        both = run(subject, x, memory, weights, pieces)
        yield Finding(LAW, case, difference(both.y, whole.y), subject.bound)
        yield Finding("split gradients", case, gradient_difference(both.gradients, whole.gradients),
                      subject.gradient_bound)


def _uneven(subject: Subject, x: Tensor, memory: Memory | None, prefix: Tensor | None, weights: Tensor,
            whole: GradientRun,
            generator: torch.Generator) -> Iterator[Finding]:
    """Rows that advance by different counts, also by none, until all are at their end."""
    plan = uneven_plan(x.shape[0], subject.steps, 0 if prefix is None else 3, generator)

    def pieces(a: Tensor, m: Memory | None) -> Tensor:
        return in_uneven_pieces(subject, a, subject.start(a.shape[0], m, None, subject.steps), plan, prefix=prefix)

    case = f"rows advance by {plan}"
    yield from _against(subject, x, memory, weights, whole, pieces, case, generator)


def continuation(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Pieces of several tokens in float32, without gradients, with growing and with reserved buffers, against one call
    in float64, within the bound of `weft.laws.other_dtypes`."""
    if not (subject.stateful and subject.differentiable) or any(
            p.dtype != torch.float64 for p in subject.module.parameters()):
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    kind = torch.float32
    twin = cast(subject, kind)
    with torch.no_grad():
        with recorded(subject.module) as choices:
            exact = subject.whole(x, memory).y
        for capacity in (None, subject.steps):
            state = twin.start(2, memory_in(memory, kind), capacity, subject.steps)
            with recorded(twin.module) as chosen:
                y, _ = in_pieces(twin, tensor_in(x, kind), state, few_pieces(subject.steps))
            room = "growing" if capacity is None else "reserved"
            yield from agreement(subject, "continuation", f"float32, several tokens at once, {room} buffers", y, exact,
                                 chosen,
                                 choices, kind)

"""Laws 3, 4, 6, 9: rows do not depend on each other or on padding; states are selected, joined, saved, bounded.

A part that chooses experts is run with several random weights, because a defect may show for some choices only.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from weft.core.declarations import Trait
from weft.core.layer import LayerState
from weft.core.rows import admit
from weft.core.span import Memory, Span
from weft.core.state import concat, restore, state_arrays
from weft.laws.gradients import first_run, run
from weft.laws.report import COUNT, Finding, difference, gradient_difference
from weft.laws.split import split
from weft.laws.subject import Subject

MANY = 33
"""Rows of a large batch; a part may take another way for many rows than for the few of the other comparisons."""


def ragged(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Rows of different lengths, padded on the right with NaN, equal each row alone; outputs beyond a row's count are
    zero and have no gradient."""
    steps = subject.steps
    counts = torch.tensor([steps, steps // 2, 1, 0])
    x = subject.inputs(4, steps, generator)
    padding = torch.arange(steps, device=x.device)[None] >= counts.to(x.device)[:, None]
    poisoned = x.masked_fill(padding[..., None], torch.nan) if x.is_floating_point() else x
    memory = subject.memory(4, generator)
    span = Span(count=counts.to(x.device))
    alone, weights = first_run(subject, x, memory, generator, lambda a, m: _alone(subject, a, m, counts))
    weights[padding] = 0  # there `_alone` returns constants, which have no gradient
    for name, rows in (("noise", x), ("NaN", poisoned)) if x.is_floating_point() else (("any id", x),):
        batch = run(subject, rows, memory, weights, lambda a, m: subject.whole(a, m, span).y)
        case = f"counts {counts.tolist()} of {steps}, padded with {name}"
        yield Finding("ragged", case, difference(batch.y, alone.y), subject.bound)
        yield Finding("ragged gradients", case, gradient_difference(batch.gradients, alone.gradients),
                      subject.gradient_bound)
    if memory is not None:
        yield _source_padding(subject, x, memory, generator)
    yield _many_rows(subject, generator)


def _many_rows(subject: Subject, generator: torch.Generator) -> Finding:
    """Many short rows of several lengths in one call, and with a state in a second one, against calls of four rows."""
    x, memory = subject.inputs(MANY, 3, generator), subject.memory(MANY, generator)
    counts = (torch.arange(MANY) % 4).to(x.device)

    def outputs(rows: Tensor) -> Tensor:
        own, source = x[rows], None if memory is None else memory.select(rows)
        y = subject.whole(own, source, Span(count=counts[rows])).y
        if not subject.stateful:
            return y
        out = subject.call(own[:, :2], subject.start(len(rows), source, None, 3), Span())
        return torch.cat([y, out.y, subject.call(own[:, 2:], out.state, Span()).y], 1)

    every = torch.arange(MANY, device=x.device)
    with torch.no_grad():
        fours = torch.cat([outputs(rows) for rows in every.split(4)])
        return Finding("ragged", f"{MANY} rows in one call", difference(outputs(every), fours), subject.bound)


def _source_padding(subject: Subject, x: Tensor, memory: Memory, generator: torch.Generator) -> Finding:
    """The outputs do not depend on the source's values beyond its counts."""
    exists = memory.valid()
    assert exists is not None, "the laws' sources have counts"
    noise = torch.randn(memory.h.shape, generator=generator, dtype=torch.float64).to(memory.h)
    other = replace(memory, h=torch.where(exists[..., None], memory.h, noise))
    base, actual = (_with_and_without_state(subject, x, source) for source in (memory, other))
    return Finding("ragged", "the source padded with noise", difference(actual, base), subject.bound)


def _with_and_without_state(subject: Subject, x: Tensor, memory: Memory) -> Tensor:
    """The outputs of a call without a state and, if the subject has one, of a call with a state."""
    with torch.no_grad():
        y = subject.whole(x, memory).y
        if not subject.stateful:
            return y
        return torch.cat([y, subject.call(x, subject.start(x.shape[0], memory, None, subject.steps), Span()).y])


def _alone(subject: Subject, x: Tensor, memory: Memory | None, counts: Tensor) -> Tensor:
    """The outputs of each row in a call of its own, with zeros beyond the row's count."""
    rows = []
    for b, count in enumerate(counts.tolist()):
        own = None if memory is None else memory.select(torch.tensor([b], device=x.device))
        y = subject.whole(x[b:b + 1, :count], own).y
        missing = y.new_zeros(1, x.shape[1] - count, *y.shape[2:])
        rows.append(torch.cat([y, missing], dim=1))
    return torch.cat(rows)


def selection(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Reordering, copying, splitting and joining rows of a state commute with running the rows."""
    if not subject.stateful:
        return
    x, memory, state, before = _started(subject, generator)
    late = x[:, before:]
    with torch.no_grad():
        base = subject.call(late, state.clone(), Span()).y
        for rows in ([2, 0, 0, 1], [1], [2, 1, 0]):
            picked = subject.call(late[rows], state.select(rows), Span()).y
            yield Finding("selection", f"rows {rows}", difference(picked, base[rows]), subject.bound)
        apart = [subject.call(late[b:b + 1], part, Span()).y for b, part in enumerate(state.split([1, 1, 1]))]
        yield Finding("selection", "split into single rows", difference(torch.cat(apart), base), subject.bound)
        joined = subject.call(late, concat(state.split([1, 2])), Span()).y
        yield Finding("selection", "split 1+2 and joined", difference(joined, base), subject.bound)
        yield _rows_replaced(subject, x, memory, state, before, generator)
        # By now clones of the state have run with these and with other tokens.
        again = subject.call(late, state.clone(), Span()).y
        yield Finding("selection", "a clone is unharmed when its siblings run", difference(again, base), subject.bound)


def _started(subject: Subject, generator: torch.Generator) -> tuple[Tensor, Memory | None, LayerState, int]:
    """Three rows and a state that has consumed the first half of them."""
    x = subject.inputs(3, subject.steps, generator)
    memory = subject.memory(3, generator)
    before = subject.steps // 2
    with torch.no_grad():
        out = subject.call(x[:, :before], subject.start(3, memory, None, subject.steps), Span())
    assert out.state is not None, "a call with a state returns one"
    return x, memory, out.state, before


def _rows_replaced(subject: Subject, x: Tensor, memory: Memory | None, state: LayerState, before: int,
                   generator: torch.Generator) -> Finding:
    """Continuous batching: a new row of another length replaces a finished one."""
    own = None if memory is None else memory.select(torch.tensor([1], device=x.device))
    new = subject.inputs(1, subject.steps, generator)
    short = max(before - 2, 1)
    started = subject.call(new[:, :short], subject.start(1, own, None, subject.steps), Span()).state
    assert started is not None, "a call with a state returns one"
    mixed = admit(state.clone(), [1], started)
    late = x[:, before:].clone()
    late[1] = new[0, short:short + late.shape[1]]
    actual = subject.call(late, mixed, Span()).y
    expected = subject.call(late, state.clone(), Span()).y
    expected[1] = subject.call(late[1:2], started.clone(), Span()).y[0]
    return Finding("selection", "row 1 replaced by another sequence", difference(actual, expected), subject.bound)


def persistence(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Saved weights, loaded into the part built anew from its configuration before its first call, and a saved and
    loaded state, give exactly the same outputs."""
    x = subject.inputs(3, subject.steps, generator)
    memory = subject.memory(3, generator)
    with torch.no_grad():
        base = subject.whole(x, memory).y
        weights = load(save({k: v.clone().contiguous() for k, v in subject.module.state_dict().items()}))
        loaded = _changed(subject)
        loaded.module.load_state_dict(weights)
        yield Finding("persistence", "weights saved and loaded", difference(loaded.whole(x, memory).y, base), 1e-300)
        if not subject.stateful:
            return
        out = subject.call(x[:, :4], subject.start(3, memory, None, subject.steps), Span()).state
        assert out is not None, "a call with a state returns one"
        template = subject.start(3, memory, None, None)
        back = restore(template, load(save(state_arrays(out))))
        expected = subject.call(x[:, 4:], out, Span()).y
        actual = subject.call(x[:, 4:], back, Span()).y
    yield Finding("persistence", "state saved and restored", difference(actual, expected), 1e-300)


def _changed(subject: Subject) -> Subject:
    """The part built anew, or a copy where there is no configuration, with other weights, so that a weight that is not
    loaded changes the outputs."""
    other = copy.deepcopy(subject.module) if subject.rebuild is None else subject.rebuild()
    for tensor in other.state_dict().values():
        if tensor.is_floating_point():
            tensor.mul_(0.5)
    return subject.remake(other)


def bounded(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """State fields keep their shape, except along a dimension that is declared to grow."""
    if not subject.stateful or (Trait.PREFIX_FIRST in subject.traits and subject.steps < 4):
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    with torch.no_grad():
        state: LayerState | None = subject.start(2, memory, None, subject.steps)
        assert state is not None
        early = {path: (tensor.shape, spec) for path, (tensor, spec) in state.tensors().items()}
        for t in range(subject.steps):
            state = subject.call(x[:, t:t + 1], state, Span()).state
            assert state is not None, "a call with a state returns one"
    late = state.tensors()
    grown = [path for path, (shape, spec) in early.items()
             if any(dim != spec.grows and a != b for dim, (a, b) in
                    enumerate(zip(shape, late[path][0].shape, strict=True)))]
    yield Finding("bounded", f"fields that grew undeclared after {subject.steps} tokens: {', '.join(grown) or 'none'}",
                  float(len(grown)), COUNT)


LAW = "seeds"
DRAWS = 8
"""The number of random weights; with a few experts, each is then chosen by some token and left out by another."""


def seeds(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """The laws of ragged rows and of pieces, with other random weights each time."""
    if Trait.DISCRETE_CHOICE not in subject.traits or not subject.differentiable:
        return
    for draw in range(DRAWS):
        other = replace(subject.remake(_drawn(subject.module, generator)), thorough=False, steps=subject.steps)
        for law in (ragged, split):
            for finding in law(other, generator):
                yield replace(finding, law=LAW, case=f"weights {draw}, {finding.law}: {finding.case}")


@torch.no_grad()
def _drawn(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy with random parameters of the same mean and standard deviation as before."""
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        if parameter.numel() > 1:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
            parameter.copy_(parameter.mean() + noise * parameter.std())
    return other

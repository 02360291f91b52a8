"""Replacing rows of a running batch, trimming states, and rewinding them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor

from weft.core.rows import admit, mark, retire, rewind, trim
from weft.core.span import Memory, Span
from weft.core.state import concat
from weft.laws.in_pieces import advance, few_pieces, in_pieces
from weft.laws.report import COUNT, Finding, difference
from weft.laws.subject import Subject


def admission(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """A row is retired, receives NaN as further input, and is replaced by another: that one equals the same row alone,
    the other rows do not change, and the tensors of a reserved batch keep their addresses. States of different capacity
    can be joined."""
    if not subject.stateful:
        return
    mine, theirs = (subject.inputs(3, subject.steps, generator) for _ in range(2))
    memory = subject.memory(3, generator)
    with torch.no_grad():
        whole = [subject.whole(each, memory).y for each in (mine, theirs)]
        yield _of_other_capacity(subject, mine, memory, whole[0])
    for capacity, gradients in ((subject.steps, False), (None, False), (None, True)):
        with nullcontext() if gradients else torch.no_grad():
            actual, expected, moved = _replaced(subject, mine, theirs, memory, capacity, whole)
        case = f"{'reserved' if capacity else 'growing'} buffers, with{'' if gradients else 'out'} gradients"
        yield Finding("admission", f"row 1 retired and another admitted, {case}",
                      difference(actual.detach(), expected), subject.bound)
        if capacity is not None:
            yield Finding("admission", f"tensors that moved: {', '.join(moved) or 'none'}", float(len(moved)), COUNT)


def _of_other_capacity(subject: Subject, x: Tensor, memory: Memory | None, whole: Tensor) -> Finding:
    """A row whose capacity is the tokens that it reads, joined half-way with two rows of twice the capacity."""
    steps, half = subject.steps, subject.steps // 2
    one, two = (_rows(memory, rows, x) for rows in ([0], [1, 2]))
    _, first = advance(subject, x[:1, :half], subject.start(1, one, steps, steps))
    _, others = advance(subject, x[1:, :half], subject.start(2, two, 2 * steps, steps))
    actual, _ = in_pieces(subject, x[:, half:], concat([first, others]), few_pieces(steps - half))
    return Finding("admission", "states of different capacity joined", difference(actual, whole[:, half:]),
                   subject.bound)


def _replaced(subject: Subject, mine: Tensor, theirs: Tensor, memory: Memory | None, capacity: int | None,
              whole: list[Tensor]) -> tuple[Tensor, Tensor, list[str]]:
    """The outputs after row 1 was replaced, the expected ones, and the paths of tensors whose address has changed."""
    half, short = subject.steps // 2, max(subject.steps // 3, 1)
    _, state = advance(subject, mine[:, :half], subject.start(3, memory, capacity, subject.steps))
    state = retire(state, [1])
    along = mine[:, half:half + 1].clone()
    along[1] = torch.nan if along.is_floating_point() else 0
    _, state = advance(subject, along, state)
    _, row = advance(subject, theirs[1:2, :short], subject.start(1, _rows(memory, [1], mine), short, subject.steps))
    before = {path: tensor.data_ptr() for path, (tensor, _) in state.tensors().items()}
    state = admit(state, [1], row)
    moved = [path for path, (tensor, _) in state.tensors().items() if tensor.data_ptr() != before[path]]
    left = subject.steps - half - 1
    x, expected = (both[0][:, half + 1:].clone() for both in ((mine, theirs), whole))
    x[1], expected[1] = theirs[1, short:short + left], whole[1][1, short:short + left]
    actual, _ = in_pieces(subject, x, state, few_pieces(left))
    return actual, expected, moved


def _rows(memory: Memory | None, rows: list[int], x: Tensor) -> Memory | None:
    return None if memory is None else memory.select(torch.tensor(rows, device=x.device))


def trimming(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """A state whose rows have read different numbers of tokens is trimmed to the longest, and widened again, and
    continues unchanged."""
    if not subject.stateful:
        return
    steps, half = subject.steps, subject.steps // 2
    x, memory = subject.inputs(2, steps, generator), subject.memory(2, generator)
    read = torch.tensor([half - 2, half], device=x.device)
    late = read[:, None] + torch.arange(steps - half, device=x.device)
    rows = torch.arange(2, device=x.device)[:, None]
    with torch.no_grad():
        expected = subject.whole(x, memory).y[rows, late]
        for capacity in (2 * steps, None):
            start = subject.start(2, memory, capacity, steps)
            _, state = advance(subject, x[:, :half], start, Span(count=read))
            state = trim(state)
            sizes = {tensor.shape[spec.grows] for tensor, spec in state.tensors().values()
                     if spec.grows is not None and spec.along == "tokens"}
            room = "reserved" if capacity else "growing"
            yield Finding("trimming", f"slots kept of {half} tokens, {room} buffers: {sorted(sizes) or 'none'}",
                          float(len(sizes - {half})), COUNT)
            actual, _ = in_pieces(subject, x[rows, late], trim(state, steps), few_pieces(steps - half))
            yield Finding("trimming", f"trimmed and widened again, {room} buffers", difference(actual, expected),
                          subject.bound)


def rewinding(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """A state that has read other tokens and is rewound, twice, continues as if it had not read them; a mark contains
    no field that grows."""
    if not subject.stateful:
        return
    steps, half = subject.steps, subject.steps // 2
    x, wrong = (subject.inputs(3, steps, generator) for _ in range(2))
    memory = subject.memory(3, generator)
    with torch.no_grad():
        expected = subject.whole(x, memory).y[:, half:]
    for capacity, gradients in ((steps, False), (None, False), (None, True)):
        with nullcontext() if gradients else torch.no_grad():
            _, state = advance(subject, x[:, :half], subject.start(3, memory, capacity, steps))
            start = mark(state)
            bounded = sum(tensor.nbytes for tensor, spec in state.tensors().values() if spec.grows is None)
            for size in (steps - half, 2):
                _, state = in_pieces(subject, wrong[:, half:half + size], state, few_pieces(size))
                state = rewind(state, start)
            actual, _ = in_pieces(subject, x[:, half:], state, few_pieces(steps - half))
        case = f"{'reserved' if capacity else 'growing'} buffers, with{'' if gradients else 'out'} gradients"
        yield Finding("rewinding", f"twice, {case}", difference(actual.detach(), expected), subject.bound)
        yield Finding("rewinding", f"bytes of a mark beyond what is bounded, {case}",
                      float(max(0, start.nbytes() - bounded)), COUNT)

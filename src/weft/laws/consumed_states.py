"""A state that a call has consumed is refused, and copies of a state that are continued with different tokens do not
affect each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from weft.core.errors import StateError
from weft.core.layer import LayerState
from weft.core.span import Memory
from weft.core.state import concat
from weft.laws.in_pieces import advance, few_pieces
from weft.laws.report import COUNT, Finding, difference
from weft.laws.subject import Subject


def forks(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """A state and its copy read different tokens, a piece each in turn, and each equals its own sequence in one call.
    Gradients are off, so that buffers, growing or reserved, may be written in place."""
    if not subject.stateful:
        return
    half = subject.steps // 2
    mine = subject.inputs(3, subject.steps, generator)
    theirs = torch.cat([mine[:, :half], subject.inputs(3, subject.steps - half, generator)], dim=1)
    memory = subject.memory(3, generator)
    with torch.no_grad():
        expected = [subject.whole(each, memory).y[:, half:] for each in (mine, theirs)]
        for capacity in (None, subject.steps):
            for name in ("clone", "select", "concat"):
                actual = _both(subject, mine, theirs, memory, capacity, name)
                worst = max(difference(a, b) for a, b in zip(actual, expected, strict=True))
                room = "reserved" if capacity else "growing"
                yield Finding("forks", f"forked by {name}, {room} buffers", worst, subject.bound)


def _both(subject: Subject, mine: Tensor, theirs: Tensor, memory: Memory | None, capacity: int | None,
          name: str) -> tuple[Tensor, Tensor]:
    """The outputs of a state and of its copy, from the middle of the row on."""
    half = subject.steps // 2
    _, state = advance(subject, mine[:, :half], subject.start(3, memory, capacity, subject.steps))
    other = _fork(state, name)
    outs: tuple[list[Tensor], list[Tensor]] = ([], [])
    at = half
    for size in few_pieces(subject.steps - half):
        y, state = advance(subject, mine[:, at:at + size], state)
        outs[0].append(y)
        y, other = advance(subject, theirs[:, at:at + size], other)
        outs[1].append(y)
        at += size
    return torch.cat(outs[0], 1), torch.cat(outs[1], 1)


def _fork(state: LayerState, name: str) -> LayerState:
    if name == "clone":
        return state.clone()
    return state.select([0, 1, 2]) if name == "select" else concat([state])


def reuse(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """With gradients off a call may write into the state's buffers, so passing or copying the state again is refused.
    With gradients on nothing is overwritten, and a second call with the state equals the first."""
    if not subject.stateful:
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    half = subject.steps // 2
    with torch.no_grad():
        _, state = advance(subject, x[:, :half], subject.start(2, memory, subject.steps, subject.steps))
        advance(subject, x[:, half:], state)
        for what, again in (("passed again", lambda: advance(subject, x[:, half:], state)),
                            ("cloned", state.clone), ("selected from", lambda: state.select([0]))):
            yield Finding("reuse", f"a consumed state {what}", float(not _refused(again)), COUNT)
    with torch.enable_grad():
        _, state = advance(subject, x[:, :half], subject.start(2, memory, None, subject.steps))
        first, _ = advance(subject, x[:, half:], state)
        second, _ = advance(subject, x[:, half:], state)
    yield Finding("reuse", "passed twice with gradients on", difference(second, first), subject.bound)


def _refused(use: Callable[[], object]) -> bool:
    try:
        use()
    except StateError:
        return True
    return False

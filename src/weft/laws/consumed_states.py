"""A state that a call has consumed is refused, and copies of a state that are continued with different tokens do not
affect each other.

A state can be saved and restored at any time: before the first token, after calls that read no token, and with
reserved buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from safetensors.torch import load, save
from torch import Tensor

from weft.core.errors import StateError
from weft.core.layer import LayerState
from weft.core.span import Memory, Span
from weft.core.state import concat, restore, state_arrays
from weft.laws.in_pieces import advance, few_pieces, in_pieces
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
    other = state.clone() if name == "clone" else state.select([0, 1, 2]) if name == "select" else concat([state])
    outs: tuple[list[Tensor], list[Tensor]] = ([], [])
    at = half
    for size in few_pieces(subject.steps - half):
        y, state = advance(subject, mine[:, at:at + size], state)
        outs[0].append(y)
        y, other = advance(subject, theirs[:, at:at + size], other)
        outs[1].append(y)
        at += size
    return torch.cat(outs[0], 1), torch.cat(outs[1], 1)


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


LAW = "saving"


def saving(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """The restored state has the shapes and plain facts of the saved one and continues with bit-identical outputs."""
    if not subject.stateful:
        return
    x = subject.inputs(3, subject.steps, generator)
    memory = subject.memory(3, generator)
    for case, state, read in _states(subject, x, memory):
        yield from _compare(subject, f"saved {case}", state, x[:, read:], memory)


def _states(subject: Subject, x: Tensor, memory: Memory | None) -> Iterator[tuple[str, LayerState, int]]:
    """A description, a state, and the number of tokens that the state has read, for several states."""
    def start(capacity: int | None = subject.steps) -> LayerState:
        return subject.start(3, memory, capacity, subject.steps)

    with torch.no_grad():
        yield "before the first token, room reserved", start(), 0
        _, state = advance(subject, x[:, :0], start(None))
        yield "after an empty piece", state, 0
        _, state = in_pieces(subject, x, start(None), [3, 0])
        yield "after three tokens and an empty piece", state, 3
        _, state = advance(subject, x[:, :3], start())
        _, state = advance(subject, x[:, 3:5], state, Span(count=torch.zeros(3, dtype=torch.int64, device=x.device)))
        yield "after a call in which no row advanced, room reserved", state, 3


@torch.no_grad()
def _compare(subject: Subject, case: str, state: LayerState, rest: Tensor, memory: Memory | None) -> Iterator[Finding]:
    arrays = load(save(state_arrays(state)))
    try:
        back = restore(subject.start(3, memory, None, None), arrays)
    except StateError as error:
        yield Finding(LAW, f"{case}, not restored: {error}", torch.inf, 1e-300)
        return
    blank = torch.empty(0)
    same = state.map(lambda _, __: blank) == back.map(lambda _, __: blank)
    yield Finding(LAW, f"{case}: its facts {'are' if same else 'are not'} those that were saved", float(not same),
                  COUNT)
    sizes = few_pieces(rest.shape[1])
    expected, _ = in_pieces(subject, rest, state, sizes)
    actual, _ = in_pieces(subject, rest, back, sizes)
    yield Finding(LAW, case, difference(actual, expected), 1e-300)

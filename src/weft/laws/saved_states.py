"""A state can be saved and restored at any time: before the first token, after calls that read no token, and with
reserved buffers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from safetensors.torch import load, save
from torch import Tensor

from weft.core.errors import StateError
from weft.core.layer import LayerState
from weft.core.span import Memory, Span
from weft.core.state import restore, state_arrays
from weft.laws.in_pieces import advance, few_pieces, in_pieces
from weft.laws.report import COUNT, Finding, difference
from weft.laws.subject import Subject

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

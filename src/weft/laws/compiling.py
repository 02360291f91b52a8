"""`torch.compile` takes the whole of a part in one graph: nothing in it reads a value on the host to choose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from weft.core.layer import LayerState
from weft.core.span import Memory, Span
from weft.core.traits import Trait
from weft.laws.pieces import go_on
from weft.laws.report import Finding, difference
from weft.laws.subject import Subject

LAW = "compile"

Outputs: TypeAlias = tuple[Tensor, ...]


def compile_whole(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """A call without a state, one of packed documents, and a step of one token from a state with its room reserved,
    traced as one graph and run by torch's own operators, against the same calls as they are. Who says that it chooses
    on the host may come to several graphs. Models that are fitted by counting look their tables up on the host."""
    if not subject.differentiable:
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    begins = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    begins[0, 3] = begins[1, 0] = begins[1, -2] = True
    names = ["whole", "packed", "one step"]
    expected = _calls(subject, x, begins, memory, _started(subject, x, memory))
    try:
        found = _compiled(subject)(x, begins, memory, _started(subject, x, memory))
    except Exception as error:  # whatever stops the compiler, which passes errors of the part on as its own
        yield Finding(LAW, f"not one graph: {_reason(error)}", math.inf, subject.bound)
        return
    for name, one, other in zip(names, found, expected, strict=False):
        yield Finding(LAW, f"{name}, compiled", difference(one, other), subject.bound)


def _compiled(subject: Subject) -> Callable[[Tensor, Tensor, Memory | None, LayerState | None], Outputs]:
    def calls(x: Tensor, begins: Tensor, memory: Memory | None, state: LayerState | None) -> Outputs:
        return _calls(subject, x, begins, memory, state)

    # The compiler keeps what it makes with the code object, and only so much of it: this is one of its own.
    calls.__code__ = calls.__code__.replace()
    whole = Trait.HOST_CHOICE not in subject.traits
    return torch.compile(calls, fullgraph=whole, backend="eager", dynamic=False)


def _started(subject: Subject, x: Tensor, memory: Memory | None) -> LayerState | None:
    """A state that has read three tokens."""
    if not subject.stateful:
        return None
    with torch.no_grad():
        return go_on(subject, x[:, :3], subject.start(2, memory, subject.steps, subject.steps))[1]


def _calls(subject: Subject, x: Tensor, begins: Tensor, memory: Memory | None, state: LayerState | None) -> Outputs:
    outs = [subject.whole(x, memory).y, subject.whole(x, memory, Span(begins=begins)).y]
    if state is not None:
        with torch.no_grad():
            outs.append(subject.call(x[:, 3:4], state, Span()).y)
    return tuple(outs)


def _reason(error: Exception) -> str:
    """The first lines of what the compiler says, and where in the code."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where = [line for line in lines if line.startswith("File ") and "torch" not in line]
    return "; ".join([*lines[:2], *where[-1:]])

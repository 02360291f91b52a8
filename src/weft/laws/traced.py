"""`torch.compile` traces a part as one graph: no value of a tensor is read on the host to decide what to compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from weft.core.layer import LayerState
from weft.core.span import Memory, Span
from weft.core.traits import Trait
from weft.laws.in_pieces import advance
from weft.laws.report import Finding, difference
from weft.laws.subject import Subject

LAW = "compile"

Outputs: TypeAlias = tuple[Tensor, ...]


def compile_whole(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """A call without a state, a call with packed documents, and a step of one token from a state with reserved buffers,
    traced as one graph and run by PyTorch's own operators, against the same calls without tracing. Parts with the
    trait HOST_CHOICE may need several graphs. Counted models are left out, because they look up tables on the host."""
    if not subject.differentiable:
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    begins = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
    begins[0, 3] = begins[1, 0] = begins[1, -2] = True
    names = ["whole", "packed", "one step"]
    expected = _calls(subject, x, begins, memory, _started(subject, x, memory))
    try:
        actual = _compiled(subject)(x, begins, memory, _started(subject, x, memory))
    except Exception as error:  # the compiler raises its own errors and passes on those of the part
        yield Finding(LAW, f"not one graph: {_reason(error)}", math.inf, subject.bound)
        return
    for name, one, other in zip(names, actual, expected, strict=False):
        yield Finding(LAW, f"{name}, compiled", difference(one, other), subject.bound)


def _compiled(subject: Subject) -> Callable[[Tensor, Tensor, Memory | None, LayerState | None], Outputs]:
    def calls(x: Tensor, begins: Tensor, memory: Memory | None, state: LayerState | None) -> Outputs:
        return _calls(subject, x, begins, memory, state)

    # The compiler caches graphs by code object and limits their number, so each subject has a code object of its own.
    calls.__code__ = calls.__code__.replace()
    whole = Trait.HOST_CHOICE not in subject.traits
    return torch.compile(calls, fullgraph=whole, backend="eager", dynamic=False)


def _started(subject: Subject, x: Tensor, memory: Memory | None) -> LayerState | None:
    """The state after three tokens; None if the subject has no state."""
    if not subject.stateful:
        return None
    with torch.no_grad():
        return advance(subject, x[:, :3], subject.start(2, memory, subject.steps, subject.steps))[1]


def _calls(subject: Subject, x: Tensor, begins: Tensor, memory: Memory | None, state: LayerState | None) -> Outputs:
    outs = [subject.whole(x, memory).y, subject.whole(x, memory, Span(begins=begins)).y]
    if state is not None:
        with torch.no_grad():
            outs.append(subject.call(x[:, 3:4], state, Span()).y)
    return tuple(outs)


def _reason(error: Exception) -> str:
    """The first lines of the compiler's message, and the last line of its traceback that is not in torch."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    where = [line for line in lines if line.startswith("File ") and "torch" not in line]
    return "; ".join([*lines[:2], *where[-1:]])

"""Forms that must compute the same: those of operations from outside Weft and their references, a part and its form for
inference (outputs in one call and in steps, and states that both accept), a mask and the heads that it declares.

`torch.compile` traces a part as one graph: no value of a tensor is read on the host to decide what to compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from weft.core.declarations import Trait
from weft.core.layer import LayerState, Part
from weft.core.model import Model
from weft.core.span import Memory, Span
from weft.laws.in_pieces import advance
from weft.laws.report import COUNT, Finding, difference
from weft.laws.subject import Subject
from weft.linear.inference import inference_form
from weft.ops.form import Form
from weft.ops.form_check import differences
from weft.ops.forms import OPERATIONS, Operation

OWN = Path(__file__).parents[1]


def outside_forms() -> list[tuple[Operation[Any, Any], Form[Any, Any]]]:
    """The forms that a plugin's file or another installed package has added, each with its operation."""
    return [(operation, form) for operation in OPERATIONS.all() for form in operation.forms()
            if OWN not in Path(form.file).parents]


def forms(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """A form from outside Weft computes what the reference of its operation computes, in values and gradients, on the
    operation's examples. Other laws compare a model with itself and so cannot see a form that is wrong everywhere. Any
    call may choose a loaded form, in training too, so all of them are compared, and once, for the model."""
    if not isinstance(subject.module, Model) or not subject.thorough:
        return
    for operation, form in outside_forms():
        if form.devices is not None and "cpu" not in form.devices and not torch.cuda.is_available():
            continue
        name = f"the form {form.name!r} of {operation.name!r}"
        for each in differences(operation, form):
            for what, off in (("values", each.values), ("gradients", each.gradients)):
                case = f"{name}, {what} of example {each.example}"
                yield Finding("forms", case, math.inf if math.isnan(off) else off, each.allowed)


def inference(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """The form for inference against the part itself."""
    form = subject.remake(inference_form(subject.module))
    x = subject.inputs(3, subject.steps, generator)
    memory = subject.memory(3, generator)
    with torch.inference_mode():
        expected = subject.whole(x, memory).y
        yield Finding("inference", "whole", difference(form.whole(x, memory).y, expected), subject.bound)
        if not subject.stateful:
            return
        for name, runners in (("form", (form, form)), ("part, then form", (subject, form)),
                              ("form, then part", (form, subject))):
            actual = _one_by_one(runners, x, memory)
            yield Finding("inference", f"token by token, {name}", difference(actual, expected), subject.bound)


def _one_by_one(runners: tuple[Subject, Subject], x: Tensor, memory: Memory | None) -> Tensor:
    """The outputs token by token; the second runner computes the second half."""
    steps = x.shape[1]
    state = runners[0].start(x.shape[0], memory, steps, steps)
    outs = []
    for at in range(steps):
        runner = runners[0] if at < steps // 2 else runners[1]
        out = runner.call(x[:, at : at + 1], state, Span(fresh=at == 0, bound=at + 1, uniform=True))
        assert out.state is not None, "a call with a state returns one"
        state = out.state
        outs.append(out.y)
    return torch.cat(outs, dim=1)


def masks(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """The rule of each mask repeats after as many heads as the mask declares, on a document longer than its borders."""
    found = [part.declares().attended for part in subject.module.modules() if isinstance(part, Part)]
    for mask in dict.fromkeys(found):
        if mask is not None:
            case = f"pairs of {mask!r} in which a head differs from the one that is declared to be alike"
            yield Finding("masks", case, float(mask.undeclared()), COUNT)


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

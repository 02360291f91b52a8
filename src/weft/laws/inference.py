"""The form for inference of a part equals the part: outputs in one call and in steps, and states that both accept."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from weft.core.span import Memory, Span
from weft.laws.report import Finding, difference
from weft.laws.subject import Subject
from weft.linear.inference import inference_form

LAW = "inference"


def inference(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """The form for inference against the part itself."""
    form = subject.remake(inference_form(subject.module))
    x = subject.inputs(3, subject.steps, generator)
    memory = subject.memory(3, generator)
    with torch.inference_mode():
        expected = subject.whole(x, memory).y
        yield Finding(LAW, "whole", difference(form.whole(x, memory).y, expected), subject.bound)
        if not subject.stateful:
            return
        for name, runners in (("form", (form, form)), ("part, then form", (subject, form)),
                              ("form, then part", (form, subject))):
            actual = _one_by_one(runners, x, memory)
            yield Finding(LAW, f"token by token, {name}", difference(actual, expected), subject.bound)


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

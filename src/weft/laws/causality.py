"""Law 2: what comes later changes nothing that came before."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from weft.core.span import WHOLE, Memory
from weft.core.traits import Trait
from weft.laws.gradients import run
from weft.laws.report import Finding, difference
from weft.laws.subject import Subject

LAW = "causality"


def causality(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """Everything from token t on is replaced; the outputs before t stay, and have no gradient from there."""
    if not subject.stateful:
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    other = subject.inputs(2, subject.steps, generator)
    with torch.no_grad():
        base = subject.whole(x, memory).y
        for t in range(1, subject.steps):
            changed = torch.cat([x[:, :t], other[:, t:]], dim=1)
            if Trait.DECLARED_LENGTH in subject.traits:
                state = subject.start(2, memory, None, subject.steps)
                found = subject.call(changed[:, :t], state, WHOLE).y
            else:
                found = subject.whole(changed, memory).y[:, :t]
            yield Finding(LAW, f"tokens from {t} on replaced", difference(found, base[:, :t]), subject.bound)
    if subject.differentiable and x.is_floating_point():
        yield _gradient(subject, x, memory)


def _gradient(subject: Subject, x: torch.Tensor, memory: Memory | None) -> Finding:
    half = subject.steps // 2
    with torch.no_grad():
        weights = torch.ones_like(subject.whole(x, memory).y)
    weights[:, half:] = 0
    found = run(subject, x, memory, weights, lambda a, m: subject.whole(a, m).y)
    later = found.gradients[sum(p.requires_grad for p in subject.module.parameters())]
    size = 0.0 if later is None else float(later[:, half:].abs().max())
    return Finding(LAW, f"gradient of tokens before {half} at tokens from {half} on", size, subject.gradient_bound)

"""Law 2: later tokens do not change the outputs of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from weft.core.declarations import Trait
from weft.core.span import WHOLE, Memory
from weft.laws.gradients import run
from weft.laws.report import Finding, difference
from weft.laws.subject import Subject

LAW = "causality"


def causality(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """The tokens from t on are replaced: the outputs before t stay, and have no gradient with respect to them."""
    if not subject.stateful:
        return
    x = subject.inputs(2, subject.steps, generator)
    memory = subject.memory(2, generator)
    other = subject.inputs(2, subject.steps, generator)
    with torch.no_grad():
        base = subject.whole(x, memory).y
        for t, actual in enumerate(_replaced(subject, x, other, memory), 1):
            yield Finding(LAW, f"tokens from {t} on replaced", difference(actual[:, :t], base[:, :t]), subject.bound)
    if subject.differentiable and x.is_floating_point():
        yield _gradient(subject, x, memory)


def _replaced(subject: Subject, x: Tensor, other: Tensor, memory: Memory | None) -> Iterator[Tensor]:
    """The outputs, up to t at least, with the tokens from t on replaced by others, for t = 1 to T - 1. Thorough runs
    make a call for each t, so that a part that mixes rows is not reported as one that reads later tokens."""
    changed = [torch.cat([x[:, :t], other[:, t:]], dim=1) for t in range(1, subject.steps)]
    if Trait.DECLARED_LENGTH in subject.traits:
        for t, each in enumerate(changed, 1):
            yield subject.call(each[:, :t], subject.start(2, memory, None, subject.steps), WHOLE).y
    elif subject.thorough:
        yield from (subject.whole(each, memory).y for each in changed)
    else:
        rows = torch.arange(2, device=x.device).repeat(len(changed))
        together = subject.whole(torch.cat(changed), None if memory is None else memory.select(rows)).y
        yield from together.split(2)


def _gradient(subject: Subject, x: Tensor, memory: Memory | None) -> Finding:
    half = subject.steps // 2
    with torch.no_grad():
        weights = torch.ones_like(subject.whole(x, memory).y)
    weights[:, half:] = 0
    actual = run(subject, x, memory, weights, lambda a, m: subject.whole(a, m).y)
    later = actual.gradients[sum(p.requires_grad for p in subject.module.parameters())]
    size = 0.0 if later is None else float(later[:, half:].abs().max())
    return Finding(LAW, f"gradient of tokens before {half} at tokens from {half} on", size, subject.gradient_bound)

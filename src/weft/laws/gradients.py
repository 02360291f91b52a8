"""Values and gradients of a run, for comparison with those of another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from weft.core.span import Memory
from weft.laws.subject import Subject


class GradientRun(NamedTuple):
    """Outputs [B,T,...], and the gradients of a randomly weighted sum of them with respect to the parameters, the input
    and the memory; no gradients if none were requested."""

    y: Tensor
    gradients: list[Tensor | None]


def run(subject: Subject, x: Tensor, memory: Memory | None, weights: Tensor | None,
        forward: Callable[[Tensor, Memory | None], Tensor]) -> GradientRun:
    """``forward(x, memory)`` with gradients off (``weights`` None), or with the gradients of sum(y * weights)."""
    if weights is None:
        with torch.no_grad():
            return GradientRun(forward(x, memory), [])
    return _weighted(subject, x, memory, lambda y: weights, forward)


def first_run(subject: Subject, x: Tensor, memory: Memory | None, generator: torch.Generator,
              forward: Callable[[Tensor, Memory | None], Tensor]) -> tuple[GradientRun, Tensor]:
    """`run` with gradients and new random weights; returns the run and these weights, for the runs to compare with."""
    drawn: list[Tensor] = []

    def draw(y: Tensor) -> Tensor:
        drawn.append(torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.device))
        return drawn[0]

    first = _weighted(subject, x, memory, draw, forward)
    return first, drawn[0]


def _weighted(subject: Subject, x: Tensor, memory: Memory | None, weigh: Callable[[Tensor], Tensor],
              forward: Callable[[Tensor, Memory | None], Tensor]) -> GradientRun:
    """The outputs y, and the gradients of sum(y * weigh(y)) if the subject is differentiable."""
    with torch.set_grad_enabled(subject.differentiable):
        leaves: list[Tensor] = [p for p in subject.module.parameters() if p.requires_grad]
        if x.is_floating_point():
            x = x.detach().requires_grad_()
            leaves.append(x)
        if memory is not None and memory.h.grad_fn is None:
            memory = replace(memory, h=memory.h.detach().requires_grad_())
            leaves.append(memory.h)
        y = forward(x, memory)
        weights = weigh(y)
        if not subject.differentiable:
            return GradientRun(y, [])
        loss = (y * weights.to(y.dtype)).sum()
        if not leaves or loss.grad_fn is None:
            return GradientRun(y.detach(), [None for _ in leaves])
        # A model's memory was encoded once, before this call; the graph is retained for other runs that use it.
        return GradientRun(y.detach(), list(torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)))

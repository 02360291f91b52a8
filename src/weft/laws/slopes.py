"""Gradients against difference quotients, which no other law needs: a backward that is wrong in the same way everywhere
agrees with itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from weft.core.span import Memory, Span
from weft.laws.gradients import first_run
from weft.laws.report import Finding
from weft.laws.subject import Subject

STEPS = 5
"""Tokens of the rows, which are enough for every path of a gradient and keep the many calls cheap."""
WIDTHS = (1e-4, 1e-6)
"""Half widths of the difference quotients. The better of the two counts: a kink, such as a rectifier's, that lies
within one is seldom within both, and a wrong gradient is wrong for any."""
BOUND = 1e-5
"""The largest deviation, as a share of the gradient's norm. Central differences in float64 are right to about 1e-8."""
FLOOR = 1e-4
"""Share of the outputs' norm that is added to the gradient's: the rounding of a gradient of zero is no defect."""


def slopes(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """The gradient of each parameter, of the input and of the memory, along one random direction each, equals the
    difference quotient of the outputs along it."""
    if not subject.differentiable:
        return
    steps, seed = min(STEPS, subject.steps), int(torch.randint(1 << 30, (1,), generator=generator))
    x = subject.inputs(2, steps, generator)
    source = _source(subject, seed)
    first, weights = first_run(subject, x, source, generator, lambda a, m: subject.whole(a, m).y)
    floor = FLOOR * float(first.y.norm())
    for (name, leaf, value), gradient in zip(_leaves(subject, x, source, weights, seed), first.gradients, strict=True):
        direction = torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf)
        claimed = 0.0 if gradient is None else float((gradient * direction).sum())
        scale = floor + (0.0 if gradient is None else float(gradient.norm()))
        with torch.no_grad():
            wrong = min(abs((value(leaf + h * direction) - value(leaf - h * direction)) / (2 * h) - claimed)
                        for h in WIDTHS)
        yield Finding("slopes", name, wrong / scale if scale else wrong, BOUND)


def joint_slope(subject: Subject, x: Tensor, source: Memory | None, span: Span, generator: torch.Generator) -> Finding:
    """The gradient of all parameters, the input and the memory together, along one random direction of them all,
    against the difference quotient along it: four calls, which long rows can afford."""
    source = None if source is None else replace(source, h=source.h.detach())
    first, weights = first_run(subject, x, source, generator, lambda a, m: subject.whole(a, m, span).y)
    parameters = [p for p in subject.module.parameters() if p.requires_grad]
    others = [each for each in (x, None if source is None else source.h) if each is not None
              and each.is_floating_point()]
    own = [p.detach().clone() for p in parameters]
    ways = [torch.randn(each.shape, generator=generator, dtype=torch.float64).to(each) for each in (*own, *others)]

    def value(step: float) -> float:
        for parameter, before, way in zip(parameters, own, ways, strict=False):
            parameter.copy_(before + step * way)
        moved = iter(ways[len(own):])
        a = x + step * next(moved) if x.is_floating_point() else x
        m = None if source is None else replace(source, h=source.h + step * next(moved))
        return float((subject.whole(a, m, span).y * weights).sum())

    given = [(gradient, way) for gradient, way in zip(first.gradients, ways, strict=True) if gradient is not None]
    claimed = sum(float((gradient * way).sum()) for gradient, way in given)
    scale = FLOOR * float(first.y.norm()) + math.hypot(*(float(gradient.norm()) for gradient, _ in given))
    with torch.no_grad():
        wrong = min(abs((value(h) - value(-h)) / (2 * h) - claimed) for h in WIDTHS)
        value(0.0)  # puts the parameters back
    return Finding("slopes", f"everything at once, {x.shape[1]} tokens", wrong / scale if scale else wrong, BOUND)


def _leaves(subject: Subject, x: Tensor, source: Memory | None, weights: Tensor,
            seed: int) -> Iterator[tuple[str, Tensor, Callable[[Tensor], float]]]:
    """Name, values and the weighted sum of the outputs as a function of other values of it, of every tensor with a
    gradient, in the order of `weft.laws.gradients`."""
    def weighted(a: Tensor, m: Memory | None) -> float:
        return float((subject.whole(a, m).y * weights).sum())

    for name, parameter in subject.module.named_parameters():
        if parameter.requires_grad:
            yield name, parameter.detach().clone(), _with(parameter, lambda: weighted(x, _source(subject, seed)))
    if x.is_floating_point():
        yield "the input", x, lambda values: weighted(values, source)
    if source is not None and source.h.grad_fn is None:
        yield "the memory", source.h, lambda values: weighted(x, replace(source, h=values))


def _with(parameter: Tensor, value: Callable[[], float]) -> Callable[[Tensor], float]:
    """``value()`` as a function of the parameter's values, which are put back."""
    def of(values: Tensor) -> float:
        own = parameter.clone()
        parameter.copy_(values)
        try:
            return value()
        finally:
            parameter.copy_(own)

    return of


def _source(subject: Subject, seed: int) -> Memory | None:
    """The same random source at each call, encoded with the model's present weights."""
    return subject.memory(2, torch.Generator().manual_seed(seed))

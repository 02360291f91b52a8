"""Comparing the forms of an operation with its reference: values and gradients, on every example that a form serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from weft.ops.forms import REFERENCE, Form, Operation


class FormDeviation(NamedTuple):
    """How far a form is off on one example.

    Attributes:
        example: index among the operation's examples.
        values: the largest difference of a result, relative to the largest entry of the reference's.
        gradients: likewise of the gradients of everything that the example made; 0 where none is recorded.
        allowed: how far it may be off.
    """

    form: str
    example: int
    values: float
    gradients: float
    allowed: float


BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Relative to the largest entry: a thousand roundings in float32 and more in float64; in float16 and bfloat16, whose
results and gradients are rounded once or twice each, eight roundings."""


def differences(operation: Operation[Any, Any], form: Form[Any, Any]) -> Iterator[FormDeviation]:
    """Compare the form, and its kernel if it has one, with the reference, on those of the operation's examples that it
    can serve, in float64 or, where it has none, in each of its dtypes; on a CPU or, where it runs on none, on another
    of its devices."""
    device = "cpu" if form.devices is None or "cpu" in form.devices else min(form.devices)
    if form.dtypes is None or torch.float64 in form.dtypes:
        yield from _differences(operation, form, torch.float64, device)
    else:
        for dtype in sorted(form.dtypes, key=str):
            yield from _differences(operation, form, dtype, device)


def _differences(operation: Operation[Any, Any], form: Form[Any, Any], dtype: torch.dtype,
                 device: str) -> Iterator[FormDeviation]:
    recorded = form.gradients != "without"
    ways = (form.run,) if form.kernel is None else (form.run, form.kernel.run)
    for index in range(len(list(operation.examples(_Maker(dtype))))):
        outcomes = []
        with torch.set_grad_enabled(recorded):
            for run in (operation.form(REFERENCE).run, *ways):
                maker = _Maker(dtype)
                call = _moved(list(operation.examples(maker))[index], device)
                if not operation.can(form, call):
                    break
                outcomes.append(_outcome(operation, run, call, maker.made, recorded))
        for values, own in outcomes[1:]:
            naive, slopes = outcomes[0]
            allowed = BOUNDS[dtype] if operation.summary is None else operation.summary[1]
            yield FormDeviation(form.name, index, _farthest(naive, values), _farthest(slopes, own), allowed)


def _moved(call: Any, device: str) -> Any:
    """A call on a device. The examples make theirs on the CPU, and their gradients arrive there."""
    if device == "cpu":
        return call
    return tree_map(lambda each: each.to(device) if isinstance(each, Tensor) else each, call)


def example(operation: Operation[Any, Any], dtype: torch.dtype) -> Any:
    """The largest of the operation's examples."""
    return max(operation.examples(_Maker(dtype)), key=lambda call: getattr(call, operation.subject).numel())


class _Maker:
    """Makes random numbers that require a gradient, the same numbers for every maker."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.made = dtype, list[Tensor]()
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        numbers = torch.randn(shape, generator=self._generator, dtype=torch.float64).to(self.dtype)
        self.made.append(numbers.requires_grad_())
        return numbers


def _outcome(operation: Operation[Any, Any], run: Callable[[Any], Any], call: Any, made: list[Tensor],
             recorded: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Results, and gradients of their sum with random weights; for a random operation its summary alone."""
    torch.manual_seed(1)
    result = run(call)
    if operation.summary is not None:
        return [operation.summary[0](call, result)], []
    values = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
    taken = [each for each in values if each.requires_grad]
    if not recorded or not taken:
        return values, []
    weights = [torch.randn(each.shape, dtype=torch.float64).to(each) for each in taken]
    slopes = torch.autograd.grad(taken, made, weights, allow_unused=True)
    return values, [torch.zeros_like(x) if slope is None else slope for x, slope in zip(made, slopes, strict=True)]


def _farthest(expected: list[Tensor], actual: list[Tensor]) -> float:
    """The largest relative difference; NaN where a result is NaN, infinity where shapes or dtypes differ."""
    if [(x.shape, x.dtype) for x in expected] != [(x.shape, x.dtype) for x in actual]:
        return float("inf")
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(actual, expected, strict=True) if b.numel()]
    off = [float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs]
    return max(off, key=lambda each: (each != each, each), default=0.0)

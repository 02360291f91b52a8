"""From broken laws to the layers that break them: each defect is reported once, at the innermost layer that has it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from weft.core.declarations import Trait
from weft.core.layer import Layer
from weft.laws.plain_words import likely_cause, meaning, rank
from weft.laws.report import Finding, Report
from weft.laws.subject import Subject, layer_subject

Runner = Callable[[Subject, Collection[str]], Report]
"""Runs some of the laws of a report, given by name, on another subject: a layer of the one that was examined."""


@dataclass(frozen=True)
class Fault:
    """A defect.

    Attributes:
        layer: the class of the innermost layer that has it, or of the model if no layer breaks the law alone.
        path: the layer's path in the model, and the number of further places of equal layers.
        law: the most specific of the broken laws (`weft.laws.plain_words.ORDER`).
        means: that law in plain words.
        worst: the comparison of that law with the largest difference.
        laws: all laws that the layer breaks.
        count: the number of comparisons that fail.
        steps: tokens of the rows that were compared.
    """

    layer: str
    path: str
    law: str
    means: str
    cause: str
    worst: Finding
    laws: tuple[str, ...]
    count: int
    steps: int


def faults(examined: Sequence[tuple[Subject, Report, Runner]], documented: Mapping[str, str | None]) -> list[Fault]:
    """The defects behind the broken laws of several subjects, each once.

    Args:
        examined: subjects made from one model, their reports, and what runs the same laws on a layer of each.
        documented: the documentation of each law, for laws that `weft.laws.plain_words` does not list.
    """
    defects: list[Fault] = []
    for subject, report, run in examined:
        if report.holds:
            continue
        for fault in _innermost(subject, report, run, documented):
            if not any(other.layer == fault.layer and set(other.laws) & set(fault.laws) for other in defects):
                defects.append(fault)
    return defects


def _innermost(subject: Subject, report: Report, run: Runner, documented: Mapping[str, str | None]) -> Iterator[Fault]:
    """The defects of layers that contain no layer; of layers that contain others, as far as those do not explain them;
    and of the subject, as far as no layer explains them."""
    broken = {finding.law for finding in report.broken()}
    explained: set[str] = set()
    for inner, more, holds in _inner(subject):
        suspected = broken - explained if holds else broken
        if not suspected:
            continue
        part = run(inner, {law.removesuffix(" gradients") for law in suspected})
        own = [finding for finding in part.broken() if finding.law in suspected]
        if own:
            fault = _fault(inner, part, own, documented)
            explained |= set(fault.laws)
            yield replace(fault, path=fault.path + more)
    own = [finding for finding in report.broken() if finding.law not in explained]
    if own:
        yield _fault(subject, report, own, documented)


def _fault(subject: Subject, report: Report, broken: list[Finding], documented: Mapping[str, str | None]) -> Fault:
    law = min((finding.law for finding in broken), key=rank)
    worst = next(finding for finding in broken if finding.law == law)
    held = [finding for finding in report.findings if finding.holds]
    laws = tuple(sorted({finding.law for finding in broken}, key=rank))
    cause = likely_cause(law, broken, held, report.steps)
    return Fault(type(subject.module).__name__, subject.name, law, meaning(law, documented.get(law)), cause, worst,
                 laws, len(broken), report.steps)


def _inner(subject: Subject) -> Iterator[tuple[Subject, str, bool]]:
    """One layer of each kind: as a subject, with a note on the number of equal ones, and whether it contains layers.
    Layers that contain none come first; the others follow from the deepest to the outermost."""
    kinds: dict[object, list[tuple[str, Layer, int]]] = {}
    for path, layer, width in _reached(subject):
        kinds.setdefault(_kind(layer), []).append((path, layer, width))
    ordered = sorted(kinds.values(), key=lambda alike: (_holds_layers(alike[0][1]), -alike[0][0].count(".")))
    inherited = subject.traits & {Trait.NOT_DIFFERENTIABLE}
    for (path, layer, width), *others in ordered:
        inner = layer_subject(path, layer, width, steps=subject.steps, bound=subject.bound)
        more = f" and {len(others)} more like it" if others else ""
        anew = None if subject.rebuild is None else partial(_layer_anew, subject.rebuild, path)
        yield (replace(inner, thorough=subject.thorough, traits=inner.traits | inherited, rebuild=anew), more,
               _holds_layers(layer))


def _layer_anew(rebuild: Callable[[], nn.Module], path: str) -> nn.Module:
    return rebuild().get_submodule(path)


def _holds_layers(layer: Layer) -> bool:
    return any(isinstance(part, Layer) for part in layer.modules() if part is not layer)


def _kind(layer: nn.Module) -> object:
    """A key that is equal for layers of one kind: the types of all modules inside, and the shapes of all parameters."""
    return (tuple((name, type(part)) for name, part in layer.named_modules()),
            tuple((name, tuple(parameter.shape)) for name, parameter in layer.named_parameters()))


def _reached(subject: Subject) -> list[tuple[str, Layer, int]]:
    """The layers inside that a call runs and that can run alone: path, layer and the width of its input."""
    widths: dict[str, int] = {}
    layers = [(path, part) for path, part in subject.module.named_modules()
              if path and isinstance(part, Layer) and not part.declares().takes]

    def record(path: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            widths[path] = inputs[0].shape[-1]
        return hook

    generator = torch.Generator().manual_seed(0)
    with ExitStack() as stack, torch.no_grad():
        for path, layer in layers:
            stack.callback(layer.register_forward_pre_hook(record(path)).remove)
        # A part that raises is one of the defects to locate; the layers before it have run by then.
        with suppress(Exception):
            subject.whole(subject.inputs(1, 3, generator), subject.memory(1, generator))
    return [(path, layer, widths[path]) for path, layer in layers if path in widths]

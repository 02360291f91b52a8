"""From broken laws to the part that breaks them: each defect told once, at the innermost layer that has it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from weft.core.layer import Layer
from weft.core.traits import Trait
from weft.laws.report import Finding, Report
from weft.laws.subject import Subject, layer_subject
from weft.laws.words import likely_cause, meaning, rank

Runner = Callable[[Subject, Collection[str]], Report]
"""Runs those of a report's laws that are named on another subject, a part of the one that was examined."""


@dataclass(frozen=True)
class Fault:
    """A defect.

    Attributes:
        layer: the class of the innermost layer that has it; the model's own when no layer has it alone.
        path: where it stands in the model, and in how many more places.
        law: the law that tells most about it.
        means: the law in plain words.
        cause: what probably breaks it.
        worst: the comparison that is farthest off.
        laws: all laws that it breaks.
        count: comparisons that it breaks.
        steps: tokens of the rows that showed it.
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
    """The defects behind what several subjects broke, each once.

    Args:
        examined: subjects of one model, their reports, and how to run the same laws on a part of theirs.
        documented: what the laws that `weft.laws.words` does not list say of themselves.
    """
    found: list[Fault] = []
    for subject, report, run in examined:
        if report.holds:
            continue
        for fault in _innermost(subject, report, run, documented):
            same = (other for other in found if other.layer == fault.layer and set(other.laws) & set(fault.laws))
            if next(same, None) is None:
                found.append(fault)
    return found


def _innermost(subject: Subject, report: Report, run: Runner, documented: Mapping[str, str | None]) -> Iterator[Fault]:
    """The faults of layers that hold no others, of those that hold them where these explain nothing, and the subject's
    own."""
    broken = {finding.law for finding in report.broken()}
    explained: set[str] = set()
    for inner, more, holds in _inner(subject):
        wanted = broken - explained if holds else broken
        if not wanted:
            continue
        part = run(inner, {law.removesuffix(" gradients") for law in wanted})
        own = [finding for finding in part.broken() if finding.law in wanted]
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
    """The layers inside, one of each kind: as a subject, a note on the others, and whether it holds layers. Those that
    hold none come first, then from the deepest up."""
    kinds: dict[object, list[tuple[str, Layer, int]]] = {}
    for path, layer, width in _reached(subject):
        kinds.setdefault(_kind(layer), []).append((path, layer, width))
    ordered = sorted(kinds.values(), key=lambda alike: (_holds_layers(alike[0][1]), -alike[0][0].count(".")))
    quiet = subject.traits & {Trait.NOT_DIFFERENTIABLE}
    for (path, layer, width), *others in ordered:
        inner = layer_subject(path, layer, width, steps=subject.steps, bound=subject.bound)
        more = f" and {len(others)} more like it" if others else ""
        yield replace(inner, thorough=subject.thorough, traits=inner.traits | quiet), more, _holds_layers(layer)


def _holds_layers(layer: Layer) -> bool:
    return any(isinstance(part, Layer) for part in layer.modules() if part is not layer)


def _kind(layer: nn.Module) -> object:
    """Layers of one kind are built alike; one that holds others is told by all that it holds."""
    return (tuple((name, type(part)) for name, part in layer.named_modules()),
            tuple((name, tuple(parameter.shape)) for name, parameter in layer.named_parameters()))


def _reached(subject: Subject) -> list[tuple[str, Layer, int]]:
    """The layers inside that a call runs and that can be run alone, and the width that each is given."""
    widths: dict[str, int] = {}
    layers = [(path, part) for path, part in subject.module.named_modules()
              if path and isinstance(part, Layer) and not part.takes()]

    def note(path: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            widths[path] = inputs[0].shape[-1]
        return hook

    generator = torch.Generator().manual_seed(0)
    with ExitStack() as stack, torch.no_grad():
        for path, layer in layers:
            stack.callback(layer.register_forward_pre_hook(note(path)).remove)
        # What it raises is what is looked for; the layers before have run by then.
        with suppress(Exception):
            subject.whole(subject.inputs(1, 3, generator), subject.memory(1, generator))
    return [(path, layer, widths[path]) for path, layer in layers if path in widths]

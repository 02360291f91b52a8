"""From broken laws to the part that breaks them: each defect told once, at the innermost layer that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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

Runner = Callable[[Subject], Report]
"""The laws that found something, on another subject."""


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
    """The faults of the layers inside, and of what no layer inside shows, the subject's own."""
    explained: set[str] = set()
    laws = {finding.law for finding in report.broken()}
    for path, more, inner in _inner(subject):
        part = run(inner)
        broken = {finding.law for finding in part.broken()} & laws
        if not broken:
            continue
        explained |= broken
        kept = replace(part, findings=tuple(finding for finding in part.findings if finding.law in laws))
        for fault in _innermost(replace(inner, name=path), kept, run, documented):
            yield replace(fault, path=fault.path + more) if fault.path == path else fault
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


def _inner(subject: Subject) -> Iterator[tuple[str, str, Subject]]:
    """The nearest layers inside, one of each kind: path, a note on the others, and the layer as a subject."""
    kinds: dict[object, list[tuple[str, Layer, int]]] = {}
    for path, layer, width in _reached(subject):
        kinds.setdefault(_kind(layer), []).append((path, layer, width))
    prefix = "" if not isinstance(subject.module, Layer) else f"{subject.name}."
    for alike in kinds.values():
        path, layer, width = alike[0]
        more = "" if len(alike) == 1 else f" and {len(alike) - 1} more like it"
        inner = layer_subject(prefix + path, layer, width, steps=subject.steps, bound=subject.bound)
        quiet = subject.traits & {Trait.NOT_DIFFERENTIABLE}
        yield prefix + path, more, replace(inner, thorough=subject.thorough, traits=inner.traits | quiet)


def _kind(layer: nn.Module) -> object:
    """Layers of one kind are built alike; a block is told by all that it holds."""
    return tuple((name, type(part)) for name, part in layer.named_modules()), tuple(
        (name, tuple(parameter.shape)) for name, parameter in layer.named_parameters())


def _reached(subject: Subject) -> list[tuple[str, Layer, int]]:
    """The nearest layers inside that a call runs, and the width that each is given."""
    widths: dict[str, int] = {}
    nearest = list(_nearest(subject.module, ""))

    def note(path: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            widths[path] = inputs[0].shape[-1]
        return hook

    generator = torch.Generator().manual_seed(0)
    with ExitStack() as stack, torch.no_grad():
        for path, layer in nearest:
            stack.callback(layer.register_forward_pre_hook(note(path)).remove)
        # What it raises is what is looked for; the layers before have run by then.
        with suppress(Exception):
            subject.whole(subject.inputs(1, 3, generator), subject.memory(1, generator))
    return [(path, layer, widths[path]) for path, layer in nearest if path in widths]


def _nearest(module: nn.Module, prefix: str) -> Iterator[tuple[str, Layer]]:
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if isinstance(child, Layer):
            yield path, child
        else:
            yield from _nearest(child, f"{path}.")

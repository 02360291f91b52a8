"""By which forms a model's operations are computed here, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.calls import blank_tokens, state_for
from weft.analysis.shapes import tallied
from weft.core.model import LanguageModel
from weft.core.span import WHOLE
from weft.core.strict_json import Record
from weft.ops.form_check import example
from weft.ops.forms import OPERATIONS, Decision
from weft.ops.processor import processor_name
from weft.ops.thresholds import measured

TOKENS = 2
"""Of the state from which a single token is run."""


@dataclass(frozen=True)
class FormChoice(Record):
    """The form of an operation in a model.

    Attributes:
        passed: the forms that come before it, each with why it was not chosen.
        phases: in which it is taken: "training", "prompts", "single tokens".
        calls: of the operation, in all these phases, that take it.
    """

    operation: str
    form: str
    reason: str
    passed: tuple[str, ...]
    phases: tuple[str, ...]
    calls: int


@dataclass(frozen=True)
class KnownOperation(Record):
    """An operation of the registry.

    Attributes:
        form: that the largest of its examples takes here, in float32, with gradients.
        reason: why.
        passed: the forms that come before it, each with why it was not chosen.
        others: its other forms, in the order of preference.
    """

    name: str
    about: str
    form: str
    reason: str
    passed: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class Thresholds(Record):
    """Where the borders between forms come from.

    Attributes:
        own: whether they were measured on this processor.
    """

    processor: str
    threads: int
    torch: str
    date: str
    own: bool


def single_token(model: LanguageModel, mode: FakeTensorMode, batch: int) -> list[Decision]:
    """What is chosen for a step of one token from a state.

    Args:
        model: holding shapes of ``mode``.
        mode: of its tensors.
        batch: rows.
    """
    model.eval()
    with torch.no_grad(), tallied(model, mode):
        state = state_for(model, batch, TOKENS)
        with OPERATIONS.observed() as seen:
            model.hidden(blank_tokens(batch, 1), state, WHOLE)
    return seen


def choices(phases: Mapping[str, Iterable[Decision]]) -> tuple[FormChoice, ...]:
    """What was observed, phase by phase, with equal choices together."""
    found: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for phase, decisions in phases.items():
        for each in decisions:
            found.setdefault((each.operation, each.form, each.reason, each.passed), []).append(phase)
    return tuple(FormChoice(*key, tuple(dict.fromkeys(told)), len(told)) for key, told in sorted(found.items()))


def known_operations() -> tuple[KnownOperation, ...]:
    """Every operation, and the form that its first example takes here."""
    found = []
    for operation in OPERATIONS.all():
        form, reason, passed = operation.choose(example(operation, torch.float32))
        names = tuple(each.name for each in operation.forms() if each.name != form.name)
        found.append(KnownOperation(operation.name, operation.about, form.name, reason, passed, names))
    return tuple(found)


def known_thresholds() -> Thresholds:
    """Those that are in force."""
    found = measured()
    return Thresholds(found.processor, found.threads, found.torch, found.date, found.processor == processor_name())

"""The forms that a model's operations take on this machine, and the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.calls import blank_tokens, states_for
from weft.analysis.shapes import ValuesRead
from weft.core.model import LanguageModel
from weft.core.span import WHOLE
from weft.core.strict_json import Record
from weft.ops.form_check import example
from weft.ops.forms import OPERATIONS, Decision

TOKENS = 2
"""The reserved tokens of the state from which a single token is decoded."""


@dataclass(frozen=True)
class FormChoice(Record):
    """A form that calls of an operation take in a model.

    Attributes:
        passed: the forms that come before it, each with why it was not chosen.
        phases: the phases in which it is taken: "training", "prompts", "single tokens".
        calls: the number of calls that take it, in all these phases.
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
        form: the form that the largest of its examples takes here, in float32, with gradients.
        reason: why that form is chosen.
        passed: the forms that come before it, each with why it was not chosen.
        others: its other forms, in order of preference.
    """

    name: str
    about: str
    form: str
    reason: str
    passed: tuple[str, ...]
    others: tuple[str, ...]


def single_token(model: LanguageModel, mode: FakeTensorMode, batch: int) -> list[Decision]:
    """The forms that are chosen in a decoding step of one token.

    Args:
        model: a model of fake tensors.
        mode: the mode of these tensors.
        batch: rows of the state.
    """
    model.eval()
    with torch.no_grad(), mode, ValuesRead():
        state, = states_for(model, batch, [TOKENS])
        with OPERATIONS.observed() as decisions:
            model.hidden(blank_tokens(batch, 1), state, WHOLE)
    return decisions


def choices(phases: Mapping[str, Iterable[Decision]]) -> tuple[FormChoice, ...]:
    """The decisions of all phases; equal ones become one choice with the number of calls."""
    calls: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for phase, decisions in phases.items():
        for each in decisions:
            calls.setdefault((each.operation, each.form, each.reason, each.passed), []).append(phase)
    return tuple(FormChoice(*key, tuple(dict.fromkeys(names)), len(names)) for key, names in sorted(calls.items()))


def known_operations() -> tuple[KnownOperation, ...]:
    """Every operation, and the form that its first example takes here."""
    operations = []
    for operation in OPERATIONS.all():
        form, reason, passed = operation.choose(example(operation, torch.float32))
        names = tuple(each.name for each in operation.forms() if each.name != form.name)
        operations.append(KnownOperation(operation.name, operation.about, form.name, reason, passed, names))
    return tuple(operations)

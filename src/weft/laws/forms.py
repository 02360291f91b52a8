"""A form from outside Weft computes what the reference of its operation computes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from weft.core.model import Model
from weft.laws.report import Finding
from weft.laws.subject import Subject
from weft.ops.form import Form
from weft.ops.form_check import differences
from weft.ops.forms import OPERATIONS, Operation

LAW = "forms"
OWN = Path(__file__).parents[1]


def outside_forms() -> list[tuple[Operation[Any, Any], Form[Any, Any]]]:
    """The forms that a plugin's file or another installed package has added, each with its operation."""
    return [(operation, form) for operation in OPERATIONS.all() for form in operation.forms()
            if OWN not in Path(form.file).parents]


def forms(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """A form from outside Weft computes what the reference of its operation computes, in values and gradients, on the
    operation's examples. Other laws compare a model with itself and so cannot see a form that is wrong everywhere. Any
    call may choose a loaded form, in training too, so all of them are compared, and once, for the model."""
    if not isinstance(subject.module, Model) or not subject.thorough:
        return
    for operation, form in outside_forms():
        if form.devices is not None and "cpu" not in form.devices and not torch.cuda.is_available():
            continue
        name = f"the form {form.name!r} of {operation.name!r}"
        for each in differences(operation, form):
            for what, off in (("values", each.values), ("gradients", each.gradients)):
                yield Finding(LAW, f"{name}, {what} of example {each.example}", math.inf if math.isnan(off) else off,
                              each.allowed)

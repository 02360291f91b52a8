"""Every form of every operation against its naive one, found by discovery; and what the chooser says and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from weft.ops.form_check import differences
from weft.ops.forms import OPERATIONS, Form, Operation

PAIRS = [pytest.param(operation, form, id=f"{operation.name}-{form.name}")
         for operation in OPERATIONS.all() for form in operation.forms()]


@pytest.mark.parametrize(("operation", "form"), PAIRS)
def test_every_form_computes_what_the_naive_one_does(operation: Operation[Any, Any], form: Form[Any, Any]) -> None:
    found = list(differences(operation, form))
    assert found, "none of the examples is served by it"
    assert [each for each in found if not (each.values <= each.allowed and each.gradients <= each.allowed)] == []

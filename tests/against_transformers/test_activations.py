"""Activations that transformers knows by name are read as those with its values, or have parameters of their own."""

from __future__ import annotations

import pytest
import torch
from transformers.activations import ACT2CLS, ACT2FN

from weft.families.common import ACTIVATIONS as WORDS
from weft.families.keys import KeyProblem
from weft.ops.activations import ACTIVATIONS

OTHERS = {"prelu", "xielu", "sqrtsoftplus"}
"""Two with parameters, and one for scores of routers."""


@pytest.mark.parametrize("name", sorted(set(ACT2CLS) - OTHERS))
def test_an_activation_is_that_of_transformers(name: str) -> None:
    """Some there have constants rounded to six digits."""
    x = torch.linspace(-12, 12, 500)
    torch.testing.assert_close(ACTIVATIONS[WORDS.read(name)](x), ACT2FN[name](x), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_the_others_are_refused(name: str) -> None:
    with pytest.raises(KeyProblem, match=f"'{name}' is not known here"):
        WORDS.read(name)

"""Activations against the oracles, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import BaseModel
from torch.testing import assert_close

from oracles.feedforward import ACTIVATIONS as ORACLES
from oracles.finite_difference import gradient_agrees
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.ops.activations import ACTIVATIONS, Activation, ActivationName


class Holder(BaseModel):
    activation: Activation


def test_every_activation_has_an_oracle() -> None:
    assert set(ACTIVATIONS) == set(ORACLES)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_slopes(name: ActivationName) -> None:
    """No point lies within the finite difference's step of a kink at -3, 0, 3, 6 or 10; 1e-12 is some thousand
    roundings."""
    x = torch.cat([torch.linspace(-6.1, 6.1, 40, dtype=torch.float64), torch.tensor([-30.0, 30.0])]).requires_grad_()
    y = ACTIVATIONS[name](x)
    points = x.detach().numpy()
    assert_close(y.detach(), torch.from_numpy(ORACLES[name](points)), rtol=1e-12, atol=1e-12)
    weight = np.random.default_rng(0).standard_normal(points.shape)
    slope, = torch.autograd.grad((y * torch.from_numpy(weight)).sum(), x)
    assert gradient_agrees(ORACLES[name], [points], [slope.numpy()], np.random.default_rng(1), cotangent=weight)


@pytest.mark.parametrize(("name", "hint"), [("gleu", "'gleu'. Did you mean 'gelu'?"),
                                            ("gelu_tan", "'gelu_tan'. Did you mean 'gelu_tanh'?"),
                                            ("swash", "'swash'. Known names: clipped_gelu, gelu, gelu_tanh,"),
                                            (["relu"], "['relu']. Did you mean 'relu'?")])
def test_an_unknown_name_is_refused_with_the_nearest(name: object, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(Holder, {"activation": name})
    assert f"activation: no activation is called {hint}" in str(error.value)


def test_the_schema_lists_the_names() -> None:
    assert set(Holder.model_json_schema()["properties"]["activation"]["enum"]) == set(ACTIVATIONS)

"""Perceptrons and gated units against the oracles, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from oracles import feedforward as oracle
from oracles.finite_difference import gradient_agrees
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.layer import Pointwise
from weft.core.part_config import Dims
from weft.feedforward.glu import GLU, GLUConfig, bounded
from weft.feedforward.mlp import MLP, MLPConfig
from weft.ops.activations import ACTIVATIONS, ActivationName

D, F = 5, 7
GATED = ["gate.weight", "up.weight", "down.weight"]
BIASES = ["gate.bias", "up.bias", "down.bias"]


def agrees(layer: Pointwise, names: list[str], function) -> bool:
    """Values to 1e-12 and gradients against ``function(x[T,D], *parameters in the order of names)``."""
    torch.manual_seed(0)
    x = torch.randn(1, 6, D, dtype=torch.float64, requires_grad=True)
    parameters = dict(layer.named_parameters())
    assert set(parameters) == set(names)
    arguments = [x, *(parameters[name] for name in names)]
    numbers = [a.detach().numpy() for a in arguments]

    def reference(rows, *weights):
        return function(rows[0], *weights)[None]

    y = layer(x).y
    assert_close(y.detach(), torch.from_numpy(reference(*numbers)), rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(y)
    gradients = [g.numpy() for g in torch.autograd.grad((y * weight).sum(), arguments)]
    return gradient_agrees(reference, numbers, gradients, np.random.default_rng(0), cotangent=weight.numpy())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_mlp_is_the_oracle(name: ActivationName) -> None:
    torch.manual_seed(5)  # no hidden unit within 0.04 of the kink at 0, which would spoil the finite differences
    assert agrees(MLP(D, F, name).double(), ["up.weight", "down.weight", "up.bias", "down.bias"],
                  lambda x, *w: oracle.mlp(x, *w, activation=name))


def test_mlp_without_biases_and_torchs_own() -> None:
    torch.manual_seed(1)
    layer = MLP(D, F, "gelu", bias=False).double()
    assert agrees(layer, ["up.weight", "down.weight"], lambda x, *w: oracle.mlp(x, *w, activation="gelu"))
    x = torch.randn(2, 3, D, dtype=torch.float64)
    assert_close(layer(x).y, nn.Sequential(layer.up, nn.GELU(), layer.down)(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_glu_is_the_oracle(name: ActivationName) -> None:
    torch.manual_seed(1)
    assert agrees(GLU(D, F, name).double(), GATED, lambda x, g, u, d: oracle.glu(x, g, u, d, name))
    torch.manual_seed(2)
    assert agrees(GLU(D, F, name, bias=True).double(), GATED + BIASES,
                  lambda x, g, u, d, *b: oracle.glu(x, g, u, d, name, *b))


@pytest.mark.parametrize(("limit", "shift"), [(0.5, 1.0), (0.3, 0.0), (None, -0.7)])
def test_a_clamped_unit_is_the_oracle(limit: float | None, shift: float) -> None:
    torch.manual_seed(3)
    layer = GLU(D, F, "quick_gelu", bias=True, limit=limit, shift=shift).double()
    assert agrees(layer, GATED + BIASES, lambda x, g, u, d, *b: oracle.glu(
        x, g, u, d, "quick_gelu", *b, limit=np.inf if limit is None else limit, shift=shift))
    x = torch.randn(2, 9, D, dtype=torch.float64) * 3
    with torch.no_grad():
        assert_close(layer.inference()(x).y, layer(x).y, rtol=1e-12, atol=1e-13)


def test_a_limit_cuts_the_gate_above_alone_and_the_other_factor_at_both_ends() -> None:
    gate, up = bounded(torch.tensor([-9.0, 9.0]), torch.tensor([-9.0, 9.0]), 2.0, 1.0)
    assert (gate.tolist(), up.tolist()) == ([-9.0, 2.0], [-1.0, 3.0])


def test_a_limit_is_positive() -> None:
    with pytest.raises(ConfigError, match="limit: Input should be greater than 0, got 0"):
        parse_part(("feedforward",), {"kind": "glu", "limit": 0})


def test_widths_left_out() -> None:
    assert MLPConfig().build(Dims(12)).up.out_features == 48
    assert GLUConfig().build(Dims(100)).up.out_features == 272  # 8/3 * 100 = 266.7
    assert GLUConfig().build(Dims(12)).up.out_features == 32


@pytest.mark.parametrize("config", [*MLPConfig.examples(), *GLUConfig.examples()], ids=str)
def test_configuration_reaches_the_layer_and_survives_a_round_trip(config: MLPConfig | GLUConfig) -> None:
    assert parse_part(("feedforward",), config.dump()) == config
    layer = config.build(Dims(8))
    assert layer.activation is ACTIVATIONS[config.activation]
    assert (layer.down.bias is not None) == (layer.up.bias is not None) == config.bias
    assert config.d_ff in (None, layer.up.out_features)


@pytest.mark.parametrize("kind", ["mlp", "glu", "channel_mix"])
@pytest.mark.parametrize(("fields", "message"), [
    ({"d_ff": 0}, "d_ff: Input should be greater than 0, got 0"),
    ({"d_ff": 2.5}, "d_ff: Input should be a valid integer, got a number with a fractional part, got 2.5"),
    ({"dff": 8}, "dff: unknown key 'dff'. Did you mean 'd_ff'?"),
])
def test_bad_widths_are_named(kind: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_part(("feedforward",), {"kind": kind, **fields})
    assert message in str(error.value)


@pytest.mark.parametrize("kind", ["mlp", "glu"])
def test_an_unknown_activation_is_named_with_the_nearest(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"activation: no activation is called 'sillu'\. Did you mean 'silu'\?"):
        parse_part(("feedforward",), {"kind": kind, "activation": "sillu"})

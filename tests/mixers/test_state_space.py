"""S4 and linear state-space models against the NumPy oracle, values and gradients, in float64; ways; dtypes; errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from by_hand import require_layer
from oracles import dense_ssm as oracle
from oracles import ssm
from weft.core.config import parse
from weft.core.errors import ConfigError, StateError
from weft.core.part_config import Dims
from weft.mixers.linear_ssm import LinearSSM, LinearSSMConfig
from weft.mixers.s4 import S4, S4Config
from weft.ops.forms import OPERATIONS, forced

D, T = 3, 8
BEGINS = [False, False, True, False, False, True, True, False]
Array = np.ndarray[Any, Any]


def s4(d_model: int = D, **options: Any) -> S4:
    torch.manual_seed(0)
    return S4Config(**{"d_state": 4, "dt_max": 0.5, **options}).build(Dims(d_model)).double()


def linear(d_model: int = D, **options: Any) -> LinearSSM:
    torch.manual_seed(0)
    return LinearSSMConfig(**{"d_state": 3, "dt_max": 0.5, **options}).build(Dims(d_model)).double()


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def complexes(pairs: Array) -> Array:
    return pairs[..., 0] + 1j * pairs[..., 1]


def check(layer: S4 | LinearSSM, reference: Any, parameters: list[torch.nn.Parameter],
          begins: list[bool] | None) -> None:
    require_layer(layer, reference, parameters, begins, steps=T, width=D)


@pytest.mark.parametrize("form", ["powers", "cauchy"])
@pytest.mark.parametrize("begins", [None, BEGINS], ids=["one document", "documents"])
def test_s4_is_the_oracle_s(form: str, begins: list[bool] | None) -> None:
    layer = s4(activation="identity")
    with torch.no_grad():
        for parameter in (layer.p, layer.b):
            parameter.add_(torch.randn_like(parameter))  # complex ones

    def reference(x: Array, log_dt: Array, log_decay: Array, frequency: Array, p: Array, b: Array, c: Array,
                  skip: Array, weight: Array, bias: Array) -> Array:
        systems = oracle.dplr(-np.exp(log_decay) + 1j * frequency, complexes(p), complexes(b), complexes(c),
                              np.exp(log_dt))
        mixed = oracle.channels(x, systems, skip, begins=begins)[0] @ weight.T + bias
        return mixed[:, :D] * sigmoid(mixed[:, D:])

    with forced({"s4": form}):
        check(layer, reference, [layer.log_dt, layer.log_decay, layer.frequency, layer.p, layer.b, layer.c, layer.skip,
                                 layer.mix.weight, layer.mix.bias], begins)


@pytest.mark.parametrize("begins", [None, BEGINS], ids=["one document", "documents"])
@pytest.mark.parametrize("compute", ["recurrence", "convolution", "fft"])
@pytest.mark.parametrize("method", ["bilinear", "zoh"])
def test_linear_ssm_is_the_oracle_s(method: str, compute: str, begins: list[bool] | None) -> None:
    layer = linear(activation="identity", discretisation=method, backend=compute, init="random", mixing="linear")

    def reference(x: Array, log_dt: Array, a: Array, b: Array, c: Array, skip: Array, weight: Array,
                  bias: Array) -> Array:
        systems = oracle.linear(a, b, c, np.exp(log_dt), method)
        return oracle.channels(x, systems, skip, begins=begins)[0] @ weight.T + bias

    check(layer, reference, [layer.log_dt, layer.a, layer.b, layer.c, layer.skip, layer.mix.weight, layer.mix.bias],
          begins)


def test_s4_begins_as_hippo() -> None:
    """The output for C = B* does not depend on the basis: it is that of the real matrix of HiPPO-LegS."""
    layer, dense = s4(d_state=6), linear(d_state=6)
    with torch.no_grad():
        layer.c.copy_(layer.b)
        for name in ("log_dt", "skip"):
            getattr(dense, name).copy_(getattr(layer, name))
        dense.mix.load_state_dict(layer.mix.state_dict())
        dense.c.copy_(torch.from_numpy(ssm.hippo_legs(6)[1]))
    x = torch.randn(1, 40, D, dtype=torch.float64)
    # Initial values are rounded to float32 before the layers are widened.
    torch.testing.assert_close(layer(x).y, dense(x).y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("build", [s4, linear])
def test_a_long_chunk_equals_its_pieces_and_steps(build: Any) -> None:
    layer = build(d_state=8)
    x = torch.randn(2, 600, D, dtype=torch.float64)
    state, outputs = layer.init_state(2), []
    for piece in x.split([300, 1, 130, 1, 168], dim=1):
        out = layer(piece, state)
        state = out.state
        outputs.append(out.y)
    # The transform's rounding is about 2^-52 times the largest output, times log T.
    torch.testing.assert_close(torch.cat(outputs, 1), layer(x).y, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("build", [s4, linear])
def test_a_bfloat16_model_keeps_a_float32_state(build: Any) -> None:
    exact, rough = build(8).float(), build(8).to(torch.bfloat16)
    with torch.no_grad():
        for one, other in zip(exact.parameters(), rough.parameters(), strict=True):
            one.copy_(other.float())
    x = torch.randn(2, 40, 8).to(torch.bfloat16)
    out, expected = rough(x, rough.init_state(2)), exact(x.float(), exact.init_state(2))
    assert out.y.dtype == torch.bfloat16 and out.state.x.dtype == torch.float32
    torch.testing.assert_close(out.state.x, expected.state.x, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.y.float(), expected.y, rtol=0.05, atol=0.05)
    with torch.autocast("cpu", torch.bfloat16):
        states = exact(x.float(), exact.init_state(2)).state.x
    torch.testing.assert_close(states, expected.state.x, rtol=0, atol=0)


def test_forms_that_are_chosen() -> None:
    chosen: dict[str, list[str]] = {}
    for name, layer in (("s4", s4()), ("fft", linear()), ("named", linear(backend="recurrence"))):
        with OPERATIONS.observed() as seen:
            state = layer(torch.randn(1, 5, D, dtype=torch.float64), layer.init_state(1)).state
            layer(torch.randn(1, 1, D, dtype=torch.float64), state)
        chosen[name] = [each.form for each in seen if each.operation in ("s4", "linear_ssm")]
    assert chosen == {"s4": ["powers", "steps"], "fft": ["fft", "reference"], "named": ["reference", "reference"]}


def test_initial_values() -> None:
    layer = s4(200, dt_min=0.01, dt_max=0.02)
    steps = layer.log_dt.exp()
    assert steps.min() >= 0.01 - 1e-6 and steps.max() <= 0.02 + 1e-6 and steps.std() > 1e-3
    torch.testing.assert_close(layer.p, layer.b / math.sqrt(2), rtol=1e-6, atol=1e-6)
    assert (layer.log_decay.exp() - 0.5).abs().max() < 1e-6 and abs(float(layer.c.detach().var()) - 0.5) < 0.05
    random = linear(50, d_state=8, init="random").a
    slowest = torch.linalg.eigvals(random).real.amax(-1)
    torch.testing.assert_close(slowest, torch.full_like(slowest, -0.5), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(linear(d_state=5).a[1].detach().numpy(), ssm.hippo_legs(5)[0], rtol=1e-6)


def test_an_odd_state_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"d_state: 5 is odd, and modes come in conjugate pairs\. Give an even"):
        parse(S4Config, {"d_state": 5})


@pytest.mark.parametrize("config", [S4Config, LinearSSMConfig])
def test_steps_out_of_order_are_an_error(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"dt_min: 0\.2 is above dt_max, 0\.1\. Give the smaller step as dt_min"):
        parse(config, {"dt_min": 0.2})
    with pytest.raises(ConfigError, match=r"dt_min.*greater than 0|dt_min.*above 0"):
        parse(config, {"dt_min": 0.0})


def test_a_state_of_another_layer_or_batch_is_an_error() -> None:
    x = torch.randn(2, 3, D, dtype=torch.float64)
    with pytest.raises(StateError, match=r"a state of 1 rows for 2 rows of input\. Select the rows first"):
        s4()(x, s4().init_state(1))

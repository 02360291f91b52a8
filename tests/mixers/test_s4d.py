"""S4D against the NumPy oracle, values and gradients, in float64; long chunks; dtypes; errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oracles import ssm as oracle
from oracles.finite_difference import gradient_agrees
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.mixers.s4d import S4D, S4DConfig

D, T = 3, 8
BEGINS = [False, False, True, False, False, True, True, False]
Array = np.ndarray[Any, Any]


def build(d_model: int = D, **options: Any) -> S4D:
    torch.manual_seed(0)
    return S4DConfig(**{"d_state": 4, **options}).build(Dims(d_model)).double()


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("begins", [None, BEGINS], ids=["one document", "documents"])
@pytest.mark.parametrize("init", ["lin", "inv", "legs"])
@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_values_and_gradients_match_the_oracle(method: str, init: str, begins: list[bool] | None) -> None:
    layer = build(init=init, discretisation=method, activation="identity", dt_max=0.5)
    x = torch.randn(1, T, D, dtype=torch.float64, requires_grad=True)
    y = layer(x, None, Span(begins=None if begins is None else torch.tensor([begins]))).y

    def reference(x: Array, log_dt: Array, log_decay: Array, frequency: Array, b: Array, c: Array, skip: Array,
                  weight: Array, bias: Array) -> Array:
        inner, _ = oracle.s4d_recurrence(x, -np.exp(log_decay) + 1j * frequency, b[..., 0] + 1j * b[..., 1],
                                         c[..., 0] + 1j * c[..., 1], np.exp(log_dt), skip, method=method,
                                         begins=begins)
        mixed = inner @ weight.T + bias
        return mixed[:, :D] * sigmoid(mixed[:, D:])

    parameters = [layer.log_dt, layer.log_decay, layer.frequency, layer.b, layer.c, layer.skip, layer.mix.weight,
                  layer.mix.bias]
    args = [x.detach()[0].numpy(), *(p.detach().numpy() for p in parameters)]
    np.testing.assert_allclose(y[0].detach().numpy(), reference(*args), rtol=1e-11, atol=1e-13)
    cotangent = torch.randn_like(y)
    gradients = torch.autograd.grad((y * cotangent).sum(), [x, *parameters])
    found = [gradients[0][0].numpy(), *(g.numpy() for g in gradients[1:])]
    assert gradient_agrees(reference, args, found, np.random.default_rng(0), cotangent=cotangent[0].numpy(),
                           n_directions=1)


def test_a_long_chunk_equals_its_pieces_and_steps() -> None:
    layer = build(d_state=16, init="legs")
    x = torch.randn(2, 700, D, dtype=torch.float64)
    whole = layer(x).y
    state, outputs = layer.init_state(2), []
    for piece in x.split([300, 1, 130, 1, 1, 267], dim=1):
        out = layer(piece, state)
        state = out.state
        outputs.append(out.y)
    # The transform's rounding is about 2^-52 times the largest output, times log T.
    torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=1e-11, atol=1e-12)


def test_bfloat16_model_keeps_a_float32_state() -> None:
    exact, rough = build(8).float(), build(8).to(torch.bfloat16)
    with torch.no_grad():
        for one, other in zip(exact.parameters(), rough.parameters(), strict=True):
            one.copy_(other.float())
    x = torch.randn(2, 40, 8).to(torch.bfloat16)
    out, expected = rough(x, rough.init_state(2)), exact(x.float(), exact.init_state(2))
    assert out.y.dtype == torch.bfloat16 and out.state.modes.dtype == torch.float32
    # Parameters are equal and the system runs in float32: only sums in another order differ.
    torch.testing.assert_close(out.state.modes, expected.state.modes, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.y.float(), expected.y, rtol=0.05, atol=0.05)


def test_autocast_does_not_reach_the_system() -> None:
    layer = build(8).float()
    x = torch.randn(2, 40, 8)
    with torch.autocast("cpu", torch.bfloat16):
        modes = layer(x, layer.init_state(2)).state.modes
    torch.testing.assert_close(modes, layer(x, layer.init_state(2)).state.modes, rtol=0, atol=0)


def test_initial_steps_lie_in_their_range() -> None:
    steps = build(200, dt_min=0.01, dt_max=0.02).log_dt.exp()
    assert steps.min() >= 0.01 - 1e-6 and steps.max() <= 0.02 + 1e-6 and steps.std() > 1e-3


def test_odd_state_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"d_state: 5 is odd, and modes come in conjugate pairs\. Give an even"):
        parse(S4DConfig, {"d_state": 5})


def test_steps_out_of_order_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"dt_min: 0\.2 is above dt_max, 0\.1\. Give the smaller step as dt_min"):
        parse(S4DConfig, {"dt_min": 0.2})

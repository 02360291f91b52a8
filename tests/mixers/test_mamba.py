"""Mamba against the NumPy oracle, values and gradients, in float64; its start, its dtypes, its errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from by_hand import require_layer
from oracles import selective as oracle
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.mixers.mamba import Mamba, MambaConfig
from weft.norms.rmsnorm import RMSNormConfig
from weft.ops.forms import forced
from weft.ops.selective_scan_chunks import CHUNK

D, T = 3, 8
BEGINS = [False, False, True, False, False, True, True, False]
Array = np.ndarray[Any, Any]


def build(d_model: int = D, **options: Any) -> Mamba:
    torch.manual_seed(0)
    return MambaConfig(**{"d_state": 2, "rank": 2, **options}).build(Dims(d_model)).double()


def oracle_weights(layer: Mamba) -> list[torch.nn.Parameter]:
    return [layer.input.weight, layer.convolution.weight, layer.select.weight, layer.step.weight, layer.dt_bias,
            layer.a_log, layer.skip, layer.output.weight]


@pytest.mark.parametrize("begins", [None, BEGINS], ids=["one document", "documents"])
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
def test_values_and_gradients_match_the_oracle(normed: bool, begins: list[bool] | None) -> None:
    options = {"norm": RMSNormConfig(eps=1e-3, weight=False), "conv_bias": False} if normed else {}
    layer = build(dt_min=0.3, dt_max=0.9, **options)
    bias = None if layer.convolution.bias is None else layer.convolution.bias.detach().numpy()

    def reference(x: Array, into: Array, taps: Array, *others: Array) -> Array:
        return oracle.block(x, oracle.Weights(into, taps[:, 0], *others), conv_bias=bias, begins=begins,
                            norm_eps=1e-3 if normed else None)

    require_layer(layer, reference, oracle_weights(layer), begins, steps=T, width=D)


@pytest.mark.parametrize("form", ["native", "operator"])
def test_a_long_chunk_equals_its_pieces_and_steps(form: str) -> None:
    layer = build(70)
    layer = layer.float() if form == "native" else layer
    steps = 3 * CHUNK + 9
    x = torch.randn(2, steps, 70, dtype=layer.skip.dtype)
    with torch.no_grad(), forced({"selective_scan": form}):
        whole, state, outputs = layer(x).y, layer.init_state(2), []
        for piece in x.split([1, CHUNK - 1, 2, CHUNK, 1, steps - 2 * CHUNK - 3], dim=1):
            out = layer(piece, state)
            state = out.state
            outputs.append(out.y)
    # Sums of a hundred terms in the order of the pieces: some dozen roundings.
    bound = 1e-12 if form == "operator" else 2e-6
    torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=10 * bound, atol=bound)


def test_bfloat16_keeps_steps_states_and_rates_in_float32() -> None:
    exact, rough = build(32, rank=None).float(), build(32, rank=None).to(torch.bfloat16)
    assert rough.a_log.dtype == rough.dt_bias.dtype == torch.float32 and rough.skip.dtype == torch.bfloat16
    with torch.no_grad():
        for one, other in zip(exact.parameters(), rough.parameters(), strict=True):
            one.copy_(other.float())
    x = torch.randn(2, 40, 32).to(torch.bfloat16)
    out, expected = rough(x, rough.init_state(2)), exact(x.float(), exact.init_state(2))
    assert out.y.dtype == torch.bfloat16 and out.state.h.dtype == torch.float32
    assert out.state.history.dtype == torch.bfloat16
    # Parameters are equal; what enters the scan is rounded to 2^-9 four times on its way.
    scale = expected.state.h.abs().max()
    assert (out.state.h - expected.state.h).abs().max() < 0.03 * scale
    assert (out.y.float() - expected.y).abs().max() < 0.03 * expected.y.abs().max()


def test_autocast_does_not_reach_the_scan() -> None:
    layer = build(32).float()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(torch.randn(2, 40, 32), layer.init_state(2))
    assert out.state.h.dtype == torch.float32 and out.y.isfinite().all()


def test_it_starts_as_published() -> None:
    """Steps log-uniform, A from -1 to -N, D at 1, the steps' map uniform within the inverse root of its rank."""
    layer = MambaConfig(dt_min=0.01, dt_max=0.02, d_state=5).build(Dims(400))
    dt = torch.nn.functional.softplus(layer.dt_bias.detach().double())
    assert 0.01 - 1e-6 <= dt.min() < 0.0102 and 0.0198 < dt.max() <= 0.02 + 1e-6
    assert float(dt.log().mean()) == pytest.approx((math.log(0.01) + math.log(0.02)) / 2, abs=0.03)
    torch.testing.assert_close(layer.a_log.exp(), torch.arange(1.0, 6).repeat(800, 1))
    assert torch.equal(layer.skip, torch.ones(800)) and layer.step.weight.shape == (800, 25)
    assert 0.19 < layer.step.weight.abs().max() <= 0.2
    floored = MambaConfig(dt_min=0.01, dt_max=0.02, dt_floor=0.05).build(Dims(8))
    torch.testing.assert_close(torch.nn.functional.softplus(floored.dt_bias), torch.full((16,), 0.05))


def test_what_decays_and_steps_has_no_weight_decay() -> None:
    layer = build()
    assert {id(p) for p in layer.declares().dynamics} == {id(layer.a_log), id(layer.dt_bias)}


@pytest.mark.parametrize(("fields", "message"), [
    ({"dt_min": 0.2}, r"dt_min: 0\.2 is above dt_max, 0\.1\. Give the smaller step as dt_min"),
    ({"dt_max": float("inf")}, r"dt_max"), ({"d_state": 0}, r"d_state"), ({"rank": 0}, r"rank"),
    ({"expnd": 2}, r"expnd.*expand"),
])
def test_bad_fields_are_errors(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(MambaConfig, fields)


def test_a_state_of_another_batch_is_an_error() -> None:
    layer = build()
    with pytest.raises(Exception, match=r"a state of 2 rows for 3 rows of input\. Select the rows first"):
        layer(torch.zeros(3, 1, D).double(), layer.init_state(2))

"""Elman networks, LSTMs and GRUs against the NumPy oracles and PyTorch's own modules, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracles import recurrent as oracle
from oracles.finite_difference import gradient_agrees
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.mixers.elman import ElmanConfig
from weft.mixers.gru import GRUConfig
from weft.mixers.lstm import LSTMConfig
from weft.mixers.recurrent import Recurrent, RecurrentConfig

D, H, T = 5, 4, 7
BEGINS = [False, False, True, False, True, True, False]
Array = np.ndarray[Any, Any]


def build(config: RecurrentConfig) -> Recurrent:
    torch.manual_seed(0)
    layer = config.build(Dims(D)).double()
    assert isinstance(layer, Recurrent)
    return layer


def elman(activation: str) -> Callable[..., Array]:
    def run(begins: list[bool] | None, x: Array, out: Array, w_h: Array, w_x: Array, bias: Array) -> Array:
        return oracle.elman(x, w_x, w_h, bias, activation=activation, begins=begins)[0] @ out.T
    return run


def lstm(begins: list[bool] | None, x: Array, out: Array, w_h: Array, w_x: Array, bias: Array) -> Array:
    return oracle.lstm(x, w_x, w_h, bias, begins=begins)[0] @ out.T


def gru(begins: list[bool] | None, x: Array, out: Array, w_h: Array, w_x: Array, bias: Array, b_n: Array) -> Array:
    b_h = np.concatenate([np.zeros(2 * H), b_n])
    return oracle.gru(x, w_x, w_h, bias, b_h, begins=begins)[0] @ out.T


CASES: dict[str, tuple[RecurrentConfig, Callable[..., Array]]] = {
    "tanh": (ElmanConfig(d_hidden=H), elman("tanh")),
    "sigmoid": (ElmanConfig(d_hidden=H, activation="sigmoid"), elman("sigmoid")),
    "relu": (ElmanConfig(d_hidden=H, activation="relu"), elman("relu")),
    "lstm": (LSTMConfig(d_hidden=H), lstm),
    "gru": (GRUConfig(d_hidden=H), gru),
}


@pytest.mark.parametrize("begins", [None, BEGINS], ids=["one document", "documents"])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_match_the_oracle(case: str, begins: list[bool] | None) -> None:
    config, reference = CASES[case]
    layer = build(config)
    x = torch.randn(1, T, D, dtype=torch.float64, requires_grad=True)
    span = Span() if begins is None else Span(begins=torch.tensor([begins]))
    parameters = [layer.output.weight, layer.recurrent_weight, layer.input.weight, layer.input.bias]
    if case == "gru":
        parameters.append(layer.recurrent_bias)
    y = layer(x, None, span).y
    args = [x.detach()[0].numpy(), *(p.detach().numpy() for p in parameters)]
    np.testing.assert_allclose(y[0].detach().numpy(), reference(begins, *args), rtol=1e-12, atol=1e-14)
    cotangent = torch.randn_like(y)
    gradients = torch.autograd.grad((y * cotangent).sum(), [x, *parameters])
    assert gradient_agrees(lambda *a: reference(begins, *a), args, [gradients[0][0].numpy(),
                           *(g.numpy() for g in gradients[1:])], np.random.default_rng(0),
                           cotangent=cotangent[0].numpy())


def foreign(config: RecurrentConfig, layer: Recurrent) -> nn.Module:
    """PyTorch's module with the same weights."""
    if isinstance(config, ElmanConfig):
        assert config.activation != "sigmoid", "nn.RNN has no sigmoid"
        module: nn.RNNBase = nn.RNN(D, D, nonlinearity=config.activation, batch_first=True)
    else:
        module = (nn.LSTM if isinstance(config, LSTMConfig) else nn.GRU)(D, D, batch_first=True)
    with torch.no_grad():
        module.weight_ih_l0.copy_(layer.input.weight)
        module.weight_hh_l0.copy_(layer.recurrent_weight)
        module.bias_ih_l0.copy_(layer.input.bias)
        module.bias_hh_l0.zero_()
        if isinstance(config, GRUConfig):
            module.bias_hh_l0[2 * D:] = layer.recurrent_bias
    return module.double()


@pytest.mark.parametrize("config", [ElmanConfig(), ElmanConfig(activation="relu"), LSTMConfig(), GRUConfig()], ids=str)
def test_equals_pytorch_from_a_carried_state(config: RecurrentConfig) -> None:
    layer = build(config)
    module = foreign(config, layer)
    x = torch.randn(3, T, D, dtype=torch.float64, requires_grad=True)
    first = layer(x[:, :3], layer.init_state(3))
    y = torch.cat([first.y, layer(x[:, 3:], first.state).y], 1)
    expected = module(x)[0]
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-13)
    cotangent = torch.randn_like(y)
    got = torch.autograd.grad((y * cotangent).sum(), [x, layer.input.weight, layer.recurrent_weight])
    wanted = torch.autograd.grad((expected * cotangent).sum(), [x, module.weight_ih_l0, module.weight_hh_l0])
    torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("config", [ElmanConfig(), LSTMConfig(), GRUConfig()], ids=str)
def test_state_follows_each_rows_count(config: RecurrentConfig) -> None:
    """The state after a ragged chunk is the state of each row run alone to its count."""
    layer = build(config)
    x = torch.randn(3, T, D, dtype=torch.float64)
    start = layer(x, layer.init_state(3)).state
    state = layer(x, start.clone(), Span(count=torch.tensor([0, 2, T]))).state
    for row, count in enumerate([0, 2, T]):
        alone = layer(x[row:row + 1, :count], start.select([row])).state
        assert alone is not None
        kept, wished = state.select([row]).tensors(), alone.tensors()
        for path, (wanted, _) in wished.items():
            torch.testing.assert_close(kept[path][0], wanted, rtol=1e-13, atol=1e-14)


def test_an_autocast_call_keeps_the_states_dtype() -> None:
    layer = LSTMConfig().build(Dims(8))
    x = torch.randn(2, 4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x, layer.init_state(2))
    exact = layer(x, layer.init_state(2))
    assert out.state.h.dtype == out.state.c.dtype == torch.float32
    # bfloat16 has 8 bits: a relative error of 2^-9 an operation, on values below one.
    torch.testing.assert_close(out.state.c, exact.state.c, rtol=0, atol=0.02)


def test_forget_bias_opens_the_forget_gate_and_no_other() -> None:
    plain, open_ = build(LSTMConfig()), build(LSTMConfig(forget_bias=1.0))
    wanted = torch.zeros(4, D, dtype=torch.float64)
    wanted[1] = 1.0
    # The sum is rounded in float32, in which layers are made.
    torch.testing.assert_close(open_.input.bias - plain.input.bias, wanted.flatten(), rtol=0, atol=1e-6)


def test_forget_bias_without_bias_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"forget_bias: 1 in a network without bias\. Leave it out, or set bias"):
        parse(LSTMConfig, {"forget_bias": 1.0, "bias": False})


def test_hidden_size_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="d_hidden: Input should be greater than 0, got 0"):
        parse(GRUConfig, {"d_hidden": 0})


def test_training_is_one_operator_to_the_compiler() -> None:
    layer = build(ElmanConfig())
    x = torch.randn(2, 50, D, dtype=torch.float64)
    seen: list[str] = []

    def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    y = torch.compile(lambda x: layer(x).y, backend=keep, fullgraph=True)(x)
    torch.testing.assert_close(y, layer(x).y, rtol=1e-13, atol=1e-14)
    assert seen.count("weft.elman_scan.default") == 1 and len(seen) < 30


def test_a_sigmoid_s_weights_are_drawn_four_times_as_wide_as_glorot_s() -> None:
    """Between -b and b, b = 4 sqrt(6 / (inputs + outputs)): the largest of thousands comes close to b."""
    torch.manual_seed(0)
    layer = ElmanConfig(d_hidden=60, activation="sigmoid").build(Dims(40, 5, 16))
    for weight, ends in ((layer.input.weight, 100), (layer.recurrent_weight, 120)):
        bound = 4 * math.sqrt(6 / ends)
        assert 0.99 * bound < float(weight.abs().max()) <= bound
        assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)  # of 2,400 uniform numbers or more
    assert not layer.input.bias.any()

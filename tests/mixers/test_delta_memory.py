"""DeltaNet, Gated DeltaNet, Kimi Delta Attention and fast weights against naive loops from the papers' formulas: values
and gradients, past the border of a chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from by_hand import require_layer
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.layer import Layer
from weft.core.part_config import Dims
from weft.mixers.delta_memory import inverse_softplus
from weft.mixers.delta_net import DeltaNetConfig, GatedDeltaNetConfig, KimiDeltaConfig
from weft.mixers.fast_weights import FastWeightsConfig
from weft.ops.linear_recurrence_chunks import CHUNK

D, T, HEADS, SIZE, VALUE, TAPS = 5, CHUNK + 6, 2, 4, 3, 3
BEGINS = [t in (3, 40, CHUNK + 1) for t in range(T)]
Array = np.ndarray[Any, Any]
DOCUMENTS = pytest.mark.parametrize("begins", [None, BEGINS], ids=["one document", "documents"])


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


def normed(o: Array, weight: Array) -> Array:
    """Root-mean-square norm of each head."""
    return weight * o / np.sqrt((o * o).mean(-1, keepdims=True) + 1e-5)


def convolved(x: Array, weight: Array, begins: list[bool] | None) -> Array:
    """Every channel by itself, over the tokens of its document."""
    y = np.zeros_like(x)
    for t in range(len(x)):
        for lag in range(weight.shape[2]):
            if t - lag < 0 or (begins and any(begins[t - lag + 1:t + 1])):
                break
            y[t] = y[t] + weight[:, 0, -1 - lag] * x[t - lag]
    return y


def heads_of(x: Array, qkv: Array, taps: Array | None, begins: list[bool] | None,
             values: int) -> tuple[Array, Array, Array]:
    """Queries and keys of length 1 [T,H,E], queries scaled, and values [T,values,F]."""
    mixed = x @ qkv.T
    mixed = silu(mixed if taps is None else convolved(mixed, taps, begins))
    q, k, v = np.split(mixed, [HEADS * SIZE, 2 * HEADS * SIZE], axis=1)
    q, k = (each.reshape(T, HEADS, SIZE).repeat(values // HEADS, axis=1) for each in (q, k))
    q, k = (each / np.sqrt((each * each).sum(-1, keepdims=True) + 1e-6) for each in (q, k))
    return q / np.sqrt(SIZE), k, v.reshape(T, values, VALUE)


def memory(q: Array, k: Array, v: Array, beta: Array, alpha: Array, begins: list[bool] | None) -> Array:
    """S_t = (I - beta_t k_t k_t^T) diag(alpha_t) S_{t-1} + beta_t k_t v_t^T and q_t S_t, by matrices, [T,H,F]."""
    y = np.zeros_like(v)
    for head in range(v.shape[1]):
        state = np.zeros((k.shape[2], v.shape[2]))
        for t in range(T):
            state = state * (0 if begins and begins[t] else 1)
            key, rate = k[t, head], beta[t, head]
            erased = np.eye(len(key)) - rate * np.outer(key, key)
            state = erased @ np.diag(alpha[t, head]) @ state + rate * np.outer(key, v[t, head])
            y[t, head] = q[t, head] @ state
    return y


def check(layer: Layer, reference: Any, parameters: list[torch.nn.Parameter], begins: list[bool] | None) -> None:
    # Short steps, since keys of random length near 0 are normalised, which bends the function.
    require_layer(layer, reference, parameters, begins, steps=T, width=D, eps=1e-5)
    assert sorted(map(id, parameters)) == sorted(map(id, layer.parameters()))


def built(config: type[Any], **values: Any) -> Any:
    torch.manual_seed(0)
    layer = parse(config, {"n_heads": HEADS, "d_head": SIZE, "d_value": VALUE, **values}).build(Dims(D)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()  # biases and the norm's weights too
    return layer


@DOCUMENTS
@pytest.mark.parametrize("negative", [False, True])
def test_delta_net_matches_the_oracle(begins: list[bool] | None, negative: bool) -> None:
    """Yang et al. 2024b, sections 2.2 and 3.3."""
    layer = built(DeltaNetConfig, d_conv=TAPS, negative_eigenvalues=negative)

    def reference(x: Array, qkv: Array, taps: Array, rate: Array, weight: Array, output: Array) -> Array:
        q, k, v = heads_of(x, qkv, taps, begins, HEADS)
        beta = sigmoid(x @ rate.T) * (2 if negative else 1)
        o = memory(q, k, v, beta, np.ones((T, HEADS, SIZE)), begins)
        return normed(o, weight).reshape(T, -1) @ output.T

    check(layer, reference, [layer.qkv.weight, layer.convolution.weight, layer.rate.weight, layer.norm.weight,
                             layer.output.weight], begins)


@DOCUMENTS
def test_gated_delta_net_matches_the_oracle(begins: list[bool] | None) -> None:
    """Yang et al. 2025, equation 10; twice as many value heads as heads of queries and keys."""
    layer = built(GatedDeltaNetConfig, d_conv=TAPS, n_value_heads=2 * HEADS)

    def reference(x: Array, qkv: Array, taps: Array, rate: Array, decay: Array, log_rate: Array, bias: Array,
                  weight: Array, gate: Array, output: Array) -> Array:
        q, k, v = heads_of(x, qkv, taps, begins, 2 * HEADS)
        alpha = np.exp(-np.exp(log_rate) * softplus(x @ decay.T + bias))[..., None].repeat(SIZE, axis=2)
        o = normed(memory(q, k, v, sigmoid(x @ rate.T), alpha, begins), weight)
        return (silu(x @ gate.T) * o.reshape(T, -1)) @ output.T

    check(layer, reference, [layer.qkv.weight, layer.convolution.weight, layer.rate.weight, layer.decay.weight,
                             layer.log_rate, layer.decay_bias, layer.norm.weight, layer.gate.weight,
                             layer.output.weight], begins)


@DOCUMENTS
def test_kimi_delta_matches_the_oracle(begins: list[bool] | None) -> None:
    """Kimi Team 2025, equation 1 and section 3."""
    layer = built(KimiDeltaConfig, d_conv=None, rank=2)

    def reference(x: Array, qkv: Array, rate: Array, narrow: Array, wide: Array, log_rate: Array, bias: Array,
                  weight: Array, gate_narrow: Array, gate_wide: Array, gate_bias: Array, output: Array) -> Array:
        q, k, v = heads_of(x, qkv, None, begins, HEADS)
        steps = softplus(x @ narrow.T @ wide.T + bias).reshape(T, HEADS, SIZE)
        alpha = np.exp(-np.exp(log_rate)[:, None] * steps)
        o = normed(memory(q, k, v, sigmoid(x @ rate.T), alpha, begins), weight)
        return (sigmoid(x @ gate_narrow.T @ gate_wide.T + gate_bias) * o.reshape(T, -1)) @ output.T

    check(layer, reference, [layer.qkv.weight, layer.rate.weight, layer.narrow_decay.weight, layer.wide_decay.weight,
                             layer.log_rate, layer.decay_bias, layer.norm.weight, layer.narrow_gate.weight,
                             layer.wide_gate.weight, layer.wide_gate.bias, layer.output.weight], begins)


def projected(x: Array, nu: int) -> Array:
    """Schlag et al. 2021, section 5.3, feature by feature; divided by their sum."""
    r = np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], axis=-1)
    size = r.shape[-1]
    features = np.stack([r[..., j] * r[..., (j - i) % size] for i in range(1, nu + 1) for j in range(size)], axis=-1)
    return features / (features.sum(-1, keepdims=True) + 1e-5)


@DOCUMENTS
def test_fast_weights_by_the_delta_rule_match_the_oracle(begins: list[bool] | None) -> None:
    """Schlag et al. 2021, sections 4.2 and 5.3."""
    layer = built(FastWeightsConfig, nu=2)

    def reference(x: Array, qkv: Array, rate: Array, bias: Array, output: Array) -> Array:
        q, k, v = np.split(x @ qkv.T, [HEADS * SIZE, 2 * HEADS * SIZE], axis=1)
        q, k = (projected(each.reshape(T, HEADS, SIZE), 2) for each in (q, k))
        o = memory(q, k, v.reshape(T, HEADS, VALUE), sigmoid(x @ rate.T + bias), np.ones(k.shape), begins)
        return o.reshape(T, -1) @ output.T

    check(layer, reference, [layer.qkv.weight, layer.rate.weight, layer.rate.bias, layer.output.weight], begins)


@DOCUMENTS
def test_fast_weights_of_the_nineties_match_the_oracle(begins: list[bool] | None) -> None:
    """Schmidhuber 1992: y_t = sum over s <= t of (q_t . k_s) v_s."""
    layer = built(FastWeightsConfig, rule="sum", feature_map="identity", normalise_features=False)

    def reference(x: Array, qkv: Array, output: Array) -> Array:
        q, k, v = (each.reshape(T, HEADS, -1) for each in
                   np.split(x @ qkv.T, [HEADS * SIZE, 2 * HEADS * SIZE], axis=1))
        document = np.cumsum(begins or [False] * T)
        seen = np.tril(np.ones((T, T))) * (document[:, None] == document)
        return np.einsum("the,she,ts,shf->thf", q, k, seen, v).reshape(T, -1) @ output.T

    check(layer, reference, [layer.qkv.weight, layer.output.weight], begins)


def test_at_first_decays_are_as_published() -> None:
    torch.manual_seed(0)
    for config, low in ((GatedDeltaNetConfig, 0.01), (KimiDeltaConfig, 1.0)):
        layer = config(n_heads=64, d_head=2).build(Dims(8))
        rates, steps = layer.log_rate.exp(), torch.nn.functional.softplus(layer.decay_bias)
        assert low <= rates.min() < low + 2 and 14 < rates.max() <= 16
        # Log-uniform: the median of 64 or 128 lies within three deviations of 0.01.
        assert steps.min() >= 0.001 and steps.max() <= 0.1001 and 0.004 < steps.median() < 0.025
        assert {id(each) for each in layer.declares().dynamics} == {id(layer.log_rate), id(layer.decay_bias)}


def test_the_inverse_of_softplus() -> None:
    x = torch.tensor([1e-4, 0.1, 5.0], dtype=torch.float64)
    assert_close(torch.nn.functional.softplus(inverse_softplus(x)), x, rtol=1e-12, atol=0)


def test_sizes_follow_the_papers() -> None:
    assert DeltaNetConfig().build(Dims(32)).sizes == (4, 4, 8, 8)
    assert GatedDeltaNetConfig(n_value_heads=8).build(Dims(32)).sizes == (4, 8, 8, 16)
    assert KimiDeltaConfig().build(Dims(32)).narrow_gate.weight.shape == (8, 32)


@pytest.mark.parametrize(("config", "values", "message"), [
    (GatedDeltaNetConfig, {"n_heads": 4, "n_value_heads": 6}, r"n_value_heads: 6 value heads do not divide among 4 "
     r"heads of queries and keys\. Choose n_value_heads among the multiples of n_heads"),
    (DeltaNetConfig, {"n_heads": 5}, r"n_heads: d_model 32 does not divide into 5 heads\. Choose another number of "
     r"heads, or give d_head"),
    (FastWeightsConfig, {"feature_map": "identity"}, r"feature_map: numbers of either sign have no sum to divide by, "
     r"for it can be 0\. Give 'dpfp', 'elu' or 'relu', or set normalise_features to false"),
    (FastWeightsConfig, {"normalise_features": False},
     r"normalise_features: false, but by the delta rule a memory with keys "
     r"longer than 1 can grow without end\. Set it to true, give the rule 'sum', or use the mixer 'delta_net'"),
    (FastWeightsConfig, {"feature_map": "elu", "nu": 2}, r"nu: 2, but the feature map 'elu' has none\. Leave nu out, "
     r"or give the feature map 'dpfp'"),
])
def test_what_cannot_be_built_is_refused(config: type[Any], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(config, values).build(Dims(32))


def test_pieces_are_the_whole_and_a_state_keeps_its_size() -> None:
    layer, x = built(KimiDeltaConfig, d_conv=TAPS), torch.randn(2, CHUNK + 6, D, dtype=torch.float64)
    state, found = layer.init_state(2), []
    sizes = [state.sums.shape, state.history.shape]
    for piece in x.split([1, 1, CHUNK + 2, 2], 1):
        y, state, *_ = layer(piece, state)
        found.append(y)
        assert [state.sums.shape, state.history.shape] == sizes == [(2, HEADS, SIZE, VALUE), (2, TAPS - 1, 22)]
    assert_close(torch.cat(found, 1), layer(x).y, rtol=1e-10, atol=1e-12)

"""Retention and gated linear attention against naive loops from the papers' formulas: values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from by_hand import require_layer
from oracles import linear_attention as oracle
from oracles import rope
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.layer import Layer
from weft.core.part_config import Dims
from weft.mixers.gated_linear_attention import GatedLinearAttentionConfig
from weft.mixers.retention import RetentionConfig

D, T, HEADS, SIZE, VALUE = 5, 9, 3, 4, 2
BEGINS = [False, False, False, True, False, False, False, True, False]
Array = np.ndarray[Any, Any]


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def heads_of(x: Array, weight: Array) -> tuple[Array, ...]:
    """Queries, keys, values [T,H,...] and the gate [T,H F]."""
    q, k, v, gate = np.split(x @ weight.T, np.cumsum([HEADS * SIZE, HEADS * SIZE, HEADS * VALUE]), axis=1)
    return q.reshape(T, HEADS, SIZE), k.reshape(T, HEADS, SIZE), v.reshape(T, HEADS, VALUE), gate


def check(layer: Layer, reference: Any, parameters: list[torch.nn.Parameter], begins: list[bool] | None) -> None:
    require_layer(layer, reference, parameters, begins, steps=T, width=D)


@pytest.mark.parametrize("begins", [None, BEGINS], ids=["one document", "documents"])
def test_retention_matches_the_oracle(begins: list[bool] | None) -> None:
    """Sun et al. 2023, equations 6 to 8; the group norm is that of each head's vector, without weights."""
    torch.manual_seed(0)
    layer = parse(RetentionConfig, {"n_heads": HEADS, "d_head": SIZE, "d_value": VALUE}).build(Dims(D)).double()
    positions = np.array([t - max(s for s in range(t + 1) if s == 0 or (begins or [False] * T)[s]) for t in range(T)])
    theta = 10000.0 ** (-2 * np.arange(SIZE // 2) / SIZE)

    def reference(x: Array, weight: Array, output: Array) -> Array:
        q, k, v, gate = heads_of(x, weight)
        rows = []
        for head in range(HEADS):
            query, key = (rope.rope_interleaved(each[:, head], positions, theta) for each in (q, k))
            decay = np.full((T, SIZE), 1 - 2.0 ** (-5 - head))
            o = oracle.decaying_memory(query, key / np.sqrt(SIZE), v[:, head], decay, begins)
            rows.append((o - o.mean(1, keepdims=True)) / np.sqrt(o.var(1, keepdims=True) + 1e-5))
        return (silu(gate) * np.concatenate(rows, axis=1)) @ output.T

    check(layer, reference, [layer.qkvg.weight, layer.output.weight], begins)


@pytest.mark.parametrize("begins", [None, BEGINS], ids=["one document", "documents"])
def test_gated_linear_attention_matches_the_oracle(begins: list[bool] | None) -> None:
    """Yang et al. 2024, equation 3 and section 4.4."""
    torch.manual_seed(0)
    layer = parse(GatedLinearAttentionConfig, {"n_heads": HEADS, "d_head": SIZE, "d_value": VALUE, "decay_rank": 2,
                                               "decay_temperature": 4.0}).build(Dims(D)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()  # biases and the norm's weights too

    def reference(x: Array, weight: Array, narrow: Array, wide: Array, bias: Array, gate_bias: Array, scale: Array,
                  output: Array) -> Array:
        q, k, v, gate = heads_of(x, weight)
        decay = (1 / (1 + np.exp(-(x @ narrow.T @ wide.T + bias)))) ** (1 / 4.0)
        rows = []
        for head in range(HEADS):
            o = oracle.decaying_memory(q[:, head] / np.sqrt(SIZE), k[:, head], v[:, head],
                                       decay.reshape(T, HEADS, SIZE)[:, head], begins)
            rows.append(scale * o / np.sqrt((o * o).mean(1, keepdims=True) + 1e-5))
        return (silu(gate + gate_bias) * np.concatenate(rows, axis=1)) @ output.T

    parameters = [layer.qkvg.weight, layer.narrow.weight, layer.wide.weight, layer.wide.bias, layer.gate_bias,
                  layer.norm.weight, layer.output.weight]
    check(layer, reference, parameters, begins)


def test_sizes_follow_the_papers() -> None:
    retention, gated = RetentionConfig().build(Dims(32)), GatedLinearAttentionConfig().build(Dims(32))
    assert (retention.sizes.d_head, retention.sizes.d_value) == (8, 16)
    assert (gated.sizes.d_head, gated.sizes.d_value) == (4, 8)
    assert torch.allclose(retention.decays.at(torch.float64).exp(), 1 - 2.0 ** -torch.arange(5.0, 9.0).double())


def test_decays_stay_exact_in_bfloat16() -> None:
    """1 - 2^-8 is half a unit of bfloat16 below 1, which a memory of 256 tokens would turn into one without end."""
    layer = RetentionConfig().build(Dims(32)).to(torch.bfloat16)
    x = torch.zeros(1, 1, 32, dtype=torch.bfloat16)
    assert torch.allclose(layer.log_decay(x)[0, 0, :, 0].exp(), 1 - 2.0 ** -torch.arange(5.0, 9.0), rtol=1e-6, atol=0)


def test_sizes_that_do_not_follow_from_the_width_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"d_head: d_model 12 does not divide by 8, from which d_head follows\. Give "
                       r"d_head, or another number of heads"):
        GatedLinearAttentionConfig().build(Dims(12))
    with pytest.raises(ConfigError, match=r"n_heads: d_model 10 does not divide into 4 heads"):
        RetentionConfig().build(Dims(10))

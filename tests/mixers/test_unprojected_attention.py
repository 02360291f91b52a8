"""Attention with merged queries and keys, or with its inputs as values, against the oracles and against attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import randomise, require_agreement
from oracles import alibi, masks, rope, rope_frequencies
from oracles import attention as oracle
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.mixers.attention import Attention, AttentionConfig
from weft.mixers.key_value import KeyValueState
from weft.mixers.unprojected_attention import UnprojectedAttention, UnprojectedAttentionConfig

D, T = 6, 7
SEEN = masks.dense(masks.causal, range(T), range(T))


def build(**fields: Any) -> UnprojectedAttention:
    layer = parse(UnprojectedAttentionConfig, {"n_heads": 2, **fields}).build(Dims(D)).double().eval()
    randomise(layer)
    assert isinstance(layer, UnprojectedAttention)
    return layer


def vectors(steps: int = T) -> Tensor:
    return torch.randn(1, steps, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("scale", [None, 1.0])
def test_a_matrix_a_head_and_the_inputs_as_values(scale: float | None) -> None:
    layer, x = build(d_head=4, scores={"scale": scale}), vectors()

    def run(x: Any, merged: Any, out: Any) -> Any:
        heads = [oracle.bilinear_attention(x[0], matrix, scale=0.5 if scale is None else scale, mask=SEEN)
                 for matrix in np.split(merged, 2)]
        return (np.hstack(heads) @ out.T)[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight], run)


def test_projected_values_are_shared_by_their_groups_and_clipped_with_the_queries() -> None:
    layer, x = build(n_heads=4, n_kv_heads=2, d_value=3, d_head=4, values="projected", clip_qkv=0.7,
                     position="alibi"), vectors()

    def run(x: Any, fused: Any, out: Any) -> Any:
        x, bias = x[0], alibi.bias(alibi.slopes_press(4), range(T), range(T))
        *queries, first, second = np.split(np.clip(x @ fused.T, -0.7, 0.7), [6, 12, 18, 24, 27], axis=1)
        heads = [oracle.weights(oracle.scores(q, x, 0.5), bias[h], mask=SEEN) @ (first, second)[h // 2]
                 for h, q in enumerate(queries)]
        return (np.hstack(heads) @ out.T)[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight], run)


def test_separate_projections_with_the_inputs_as_values() -> None:
    layer, x = build(n_heads=4, n_kv_heads=2, d_head=4, queries_keys="separate", position="rope"), vectors()
    theta = rope_frequencies.base_frequencies(4)

    def run(x: Any, fused: Any, out: Any) -> Any:
        x, heads = x[0], []
        parts = [rope.rope_interleaved(part, np.arange(T), theta) for part in np.split(x @ fused.T, 6, axis=1)]
        for h in range(4):
            heads.append(oracle.weights(oracle.scores(parts[h], parts[4 + h // 2]), mask=SEEN) @ x)
        return (np.hstack(heads) @ out.T)[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight], run)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_merged_matrices_are_products_of_separate_ones(n_kv_heads: int) -> None:
    """W_h = W_q^T W_k of each head: the same outputs and the same gradients of the inputs."""
    fields = {"n_heads": 4, "n_kv_heads": n_kv_heads, "d_head": 3, "d_value": 2}
    separate = parse(AttentionConfig, fields).build(Dims(D)).double()
    assert isinstance(separate, Attention)
    randomise(separate)
    merged = build(values="projected", **fields)
    with torch.no_grad():
        q, k, v = (part.unflatten(0, (-1, size)) for part, size in zip(
            separate.qkv.weight.split([12, 3 * n_kv_heads, 2 * n_kv_heads]), (3, 3, 2), strict=True))
        k = k.repeat_interleave(4 // n_kv_heads, 0)
        merged.qkv.weight.copy_(torch.cat([(k.transpose(1, 2) @ q).flatten(0, 1), v.flatten(0, 1)]))
        merged.output.weight.copy_(separate.output.weight)
    x = vectors()
    ours, theirs = merged(x).y, separate(x).y
    assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
    weight = torch.randn(ours.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gradients = [torch.autograd.grad((y * weight).sum(), x)[0] for y in (ours, theirs)]
    assert_close(*gradients, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("fields", "keys", "values"), [
    ({}, D, 0), ({"values": "projected", "n_kv_heads": 1, "d_value": 4}, D, 4), ({"values": "projected"}, D, D),
    ({"queries_keys": "separate", "n_kv_heads": 1, "d_head": 4}, 4, D),
])
def test_what_is_not_projected_is_kept_once(fields: dict[str, Any], keys: int, values: int) -> None:
    layer, x = build(**fields), vectors(9)
    whole, state, found = layer(x).y, layer.init_state(1), []
    for piece in x.split([1, 4, 1, 3], 1):
        out = layer(piece, state)
        state = out.state
        found.append(out.y)
    assert isinstance(state, KeyValueState)
    assert (state.keys.shape, state.values.shape) == ((1, 1, 9, keys), (1, 1, 9, values))
    assert_close(torch.cat(found, 1), whole, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("fields", "message"), [
    ({"qk_norm": "rmsnorm"}, "mixer.qk_norm: merged queries and keys have no heads to normalise. Leave it out, or set "
                             "queries_keys to 'separate'."),
    ({"d_value": 3}, "mixer.d_value: 3, but values are the inputs, of 6 features. Leave it out, or set values to "
                     "'projected'."),
    ({"n_kv_heads": 1}, "mixer.n_kv_heads: 1, but neither keys nor values are projected. Leave it out."),
    ({"position": "rope"}, "mixer.position: 'rope' needs projected queries and keys, and here they are merged. Use "
                           "'none', 'alibi' or 't5', or queries_keys: separate."),
    ({"queries_keys": "separate", "position": {"kind": "shaw", "max_distance": 2}}, "mixer.position: 'shaw' adds to "
     "projected values, and here they are the inputs. Set its values to false, or values to 'projected'."),
    ({"queries_keys": "separate", "values": "projected"}, "mixer.queries_keys: with projected values too nothing "
     "differs from 'attention'. Use that kind, or set values to 'inputs'."),
])
def test_fields_that_would_have_no_effect_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(UnprojectedAttentionConfig, {"n_heads": 2, "d_head": 4, **fields}).build(Dims(D, path="mixer"))
    assert caught.value.problems == (message,)

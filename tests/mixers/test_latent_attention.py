"""Latent attention against a NumPy loop over the paper's equations, in both forms; what it keeps; what it refuses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from by_hand import randomise, require_agreement
from linear import small
from oracles import alibi, masks, norms, rope, rope_frequencies
from oracles import attention as oracle
from weft.analysis.cost_plan import plan
from weft.core.config import parse, parse_part
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.model import parse_model
from weft.core.part_config import Dims
from weft.mixers.key_value import KeyValueState
from weft.mixers.latent_attention import LatentAttention, LatentAttentionConfig
from weft.mixers.self_attention import RollingState
from weft.ops.forms import OPERATIONS, forced
from weft.positions.rope import RopeConfig

D, T = 6, 7
H, N, R, F, L = 2, 3, 4, 5, 4
SIZES = {"n_heads": H, "d_nope": N, "d_rope": R, "d_value": F, "d_latent": L}
FORMS = pytest.mark.parametrize("form", ["reference", "absorbed"])
THETA = rope_frequencies.base_frequencies(R)


def build(**fields: Any) -> LatentAttention:
    layer = parse(LatentAttentionConfig, {**SIZES, **fields}).build(Dims(D)).double().eval()
    randomise(layer)
    return layer


def vectors(steps: int = T, rows: int = 1) -> Tensor:
    return torch.randn(rows, steps, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64,
                       requires_grad=True)


def arguments(layer: LatentAttention) -> dict[str, Tensor]:
    return {name.removesuffix(".weight"): parameter for name, parameter in layer.named_parameters()}


def by_paper(names: list[str], *, mask: Any = None, scale: float | None = None, softcap: float | None = None,
             bias: Any = None, turn: Any = None) -> Any:
    """Equations 9 to 19, one head at a time: keys and values of every token are written out."""
    def turned(y: Any) -> Any:
        return rope.rope_interleaved(y, np.arange(len(y)), THETA) if turn is None else turn(y)

    def run(x: Any, *numbers: Any) -> Any:
        w = dict(zip(names, numbers, strict=True))
        rows = x[0]
        if "query" in w:
            q = rows @ w["query"].T
        else:
            down = rows @ w["query_down"].T + w.get("query_down.bias", 0.0)
            q = norms.rmsnorm(down, w["query_norm"]) @ w["query_up"].T
        down = rows @ w["latent_down"].T + w.get("latent_down.bias", 0.0)
        latent, shared = norms.rmsnorm(down[:, :L], w["latent_norm"]), turned(down[:, L:])
        heads = []
        for h in range(H):
            own = q[:, h * (N + R):(h + 1) * (N + R)]
            up = w["latent_up"][h * (N + F):(h + 1) * (N + F)]
            queries, keys = np.hstack([own[:, :N], turned(own[:, N:])]), np.hstack([latent @ up[:N].T, shared])
            weights = oracle.weights(oracle.scores(queries, keys, scale), None if bias is None else bias[h], softcap,
                                     mask)
            heads.append(weights @ (latent @ up[N:].T))
        return (np.hstack(heads) @ w["output"].T + w.get("output.bias", 0.0))[None]

    return run


CAUSAL = masks.dense(masks.causal, range(T), range(T))
WINDOWED = masks.dense(lambda i, j: masks.causal(i, j) and masks.window(i, j, 3), range(T), range(T))


@FORMS
@pytest.mark.parametrize(("fields", "stages"), [
    ({}, {"mask": CAUSAL}), ({"d_query_latent": 4}, {"mask": CAUSAL}),
    ({"d_query_latent": 3, "bias": True, "scores": {"scale": 0.3, "softcap": 0.8}},
     {"mask": CAUSAL, "scale": 0.3, "softcap": 0.8}),
    ({"mask": "causal & window(3)", "d_latent": L}, {"mask": WINDOWED}), ({"mask": "bidirectional"}, {}),
    ({"position": "alibi"}, {"mask": CAUSAL, "turn": lambda y: y, "bias": alibi.bias(
        alibi.slopes_press(H), range(T), range(T))}),
    ({"position": {"kind": "rope", "layout": "half_split"}},
     {"mask": CAUSAL, "turn": lambda y: rope.rope_half_split(y, np.arange(len(y)), THETA)})],
    ids=["plain", "queries-compressed", "biased-scaled-capped", "window", "bidirectional", "alibi", "half-split"])
def test_it_is_the_paper_s(form: str, fields: dict[str, Any], stages: dict[str, Any]) -> None:
    layer, x = build(**fields), vectors()
    with forced({"latent_attention": form}):
        y = layer(x).y
    weights = arguments(layer)
    require_agreement(y, [x, *weights.values()], by_paper(list(weights), **stages))


def test_yarn_multiplies_the_turned_features_and_the_scale_all() -> None:
    """DeepSeek's two factors: cosines by the ratio of two temperatures, scores by the square of the second."""
    scaling = {"kind": "yarn", "factor": 40.0, "original_length": 64, "mscale": 0.7, "mscale_all_dim": 1.0}
    temperature = 0.1 * np.log(40.0) + 1
    scale = (N + R) ** -0.5 * temperature ** 2
    layer = build(position={"kind": "rope", "scaling": scaling}, scores={"scale": float(scale)})
    theta = np.array(rope_frequencies.yarn(R, 10000.0, 40.0, 64)[0])
    ratio = (0.07 * np.log(40.0) + 1) / temperature
    x, weights = vectors(), arguments(layer)
    require_agreement(layer(x).y, [x, *weights.values()], by_paper(
        list(weights), mask=CAUSAL, scale=float(scale),
        turn=lambda y: ratio * rope.rope_interleaved(y, np.arange(len(y)), theta)))


@pytest.mark.parametrize(("steps", "held", "latent", "form"), [
    (T, 0, 8, "reference"), (1, 40, 8, "absorbed"), (12, 40, 8, "reference"), (2, 40, 8, "absorbed"),
    (T, 0, 3, "absorbed")])
def test_the_form_that_takes_fewer_products_is_chosen(steps: int, held: int, latent: int, form: str) -> None:
    """Of H heads with N + F = 8 and R = 4, by the counts in `weft.ops.latent_attention`."""
    layer = build(d_latent=latent)
    with torch.no_grad(), OPERATIONS.observed() as seen:
        state = layer(vectors(held), layer.init_state(1)).state if held else None
        seen.clear()
        layer(vectors(steps), state)
    assert [each.form for each in seen if each.operation == "latent_attention"] == [form]
    keys, both = held + steps, N + F
    absorbed = steps * both * latent + steps * keys * (2 * latent + R)
    expanded = keys * both * latent + steps * keys * (both + R)
    assert (absorbed < expanded) == (form == "absorbed")


def test_a_form_that_the_user_names_is_taken() -> None:
    layer = build()
    with forced({"latent_attention": "absorbed"}), OPERATIONS.observed() as seen:
        layer(vectors())
    assert [each.form for each in seen if each.operation == "latent_attention"] == ["absorbed"]


@pytest.mark.parametrize("rewrite", [{"kind": "lora", "rank": 2, "maps": ["*latent_up"]},
                                     {"kind": "int8", "maps": ["*latent_up"]}], ids=["lora", "int8"])
def test_the_matrix_that_queries_meet_is_the_rewritten_one(rewrite: dict[str, Any]) -> None:
    """Whole, latents are expanded by the map; token by token, queries are multiplied by its matrix."""
    model = small.model([rewrite], [{"kind": "latent_attention", **SIZES, "d_latent": 16}], d_model=16)
    with torch.no_grad(), OPERATIONS.observed() as seen:
        whole, state, steps = model(small.TOKENS).y, model.init_state(2, capacity=7), []
        for token in small.TOKENS.split(1, 1):
            out = model(token, state)
            state, steps = out.state, [*steps, out.y]
    assert {each.form for each in seen if each.operation == "latent_attention"} == {"absorbed", "reference"}
    torch.testing.assert_close(torch.cat(steps, 1), whole, **small.EXACT)


def test_a_map_with_a_hook_is_called_and_not_read() -> None:
    layer = build()
    layer.latent_up.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(UnsupportedError, match="the map of latents is not one matrix"), forced(
            {"latent_attention": "absorbed"}):
        layer(vectors())
    with torch.no_grad(), OPERATIONS.observed() as seen:
        layer(vectors(1), layer(vectors(40), layer.init_state(1)).state)
    assert {each.form for each in seen if each.operation == "latent_attention"} == {"reference"}


@pytest.mark.parametrize("heads", [2, 32])
def test_the_state_is_a_latent_and_one_key_however_many_the_heads(heads: int) -> None:
    layer = build(n_heads=heads)
    state = layer(vectors(rows=3), layer.init_state(3)).state
    assert isinstance(state, KeyValueState)
    assert (state.keys.shape, state.values.numel()) == ((3, 1, T, L + R), 0)
    windowed = build(n_heads=heads, mask="causal & window(3)")
    kept = windowed(vectors(rows=3), windowed.init_state(3)).state
    assert isinstance(kept, RollingState)
    assert (kept.keys.shape[-2:], kept.values.numel()) == ((3, L + R), 0)


def test_the_plan_counts_those_bytes() -> None:
    """In float32, of two layers: 8 numbers of 4 bytes a token each."""
    config = small.described([], [{"kind": "latent_attention", **SIZES}] * 2, context=64)
    found = plan(parse_model(config), contexts=(16, 48))
    assert found.states is not None
    few, many = (each.bytes for each in found.states.sizes)
    assert (many - few) / 32 == 2 * (L + R) * 4 == found.states.per_token


@pytest.mark.parametrize(("fields", "message"), [
    ({"d_rope": 3}, "d_rope: 3 features do not make pairs that can be turned. Give an even number."),
    ({"position": "sinusoidal"}, "position: 'sinusoidal' acts on embeddings, not inside attention. Put it in"),
    ({"position": "shaw"}, "position: 'shaw' reads the keys or values of every head, which latent attention does not "
                           "keep. Use rope, which turns d_rope features"),
    ({"position": "transformer_xl"}, "position: 'transformer_xl' reads the keys or values of every head"),
    ({"position": {"kind": "alibi", "rounding": "bfloat16"}}, "position: 'alibi' reads"),
    ({"n_heads": 4, "d_nope": None}, "n_heads: d_model 6 does not divide into 4 heads. Choose another number of heads, "
                                     "or give d_nope."),
    ({"backend": "sdpq"}, "backend: attention has no form called 'sdpq'."),
    ({"d_head": 4}, "d_head"), ({"mask": "per_head(causal, causal & window(2), causal)"}, "mask: ")])
def test_what_cannot_be_built_is_said(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        build(**fields)


def test_its_common_names_are_answered() -> None:
    with pytest.raises(ConfigError, match="latent_attention"):
        parse_part(("mixer",), "mla")


def test_sizes_follow_the_paper_where_none_are_given() -> None:
    sizes = parse(LatentAttentionConfig, {"n_heads": 4}).sizes(Dims(64))
    assert (sizes.content, sizes.turned, sizes.value, sizes.latent, sizes.query_latent) == (16, 8, 16, 64, None)


def test_its_positions_are_rope_s_plain_ones_unless_others_are_named() -> None:
    assert LatentAttentionConfig(n_heads=2).position == RopeConfig() == parse_part(("position",), "rope")

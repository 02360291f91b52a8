"""Self-attention against the oracle, against PyTorch's own module, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from by_hand import fused_attention, randomise, require_agreement
from oracles import alibi, masks, norms, rope, rope_frequencies
from weft.core.config import parse, parse_part
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.mixers.attention import Attention, AttentionConfig

D, T = 6, 7


def build(**fields: Any) -> Attention:
    layer = parse(AttentionConfig, fields).build(Dims(D, context=32)).double().eval()
    randomise(layer)
    return layer


def vectors(rows: int = 1, steps: int = T) -> Tensor:
    return torch.randn(rows, steps, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64,
                       requires_grad=True)


def arguments(layer: Attention, x: Tensor) -> list[Tensor]:
    """In the order of `by_hand.fused_attention`."""
    biases = [bias for bias in (layer.qkv.bias, layer.output.bias) if bias is not None]
    return [x, layer.qkv.weight, layer.output.weight, *biases]


def agree(layer: Attention, span: Span | None = None, **stages: Any) -> None:
    sizes, x = layer.sizes, vectors()
    reference = fused_attention(sizes.heads, sizes.kv_heads, sizes.d_head,
                                **{"mask": masks.dense(masks.causal, range(T), range(T)), **stages})
    require_agreement(layer(x, None, span).y, arguments(layer, x), lambda x, *rest: reference(x[0], *rest)[None])


@pytest.mark.parametrize("backend", ["reference", "sdpa", "auto"])
@pytest.mark.parametrize("fields", [
    {"n_heads": 2},
    {"n_heads": 4, "d_head": 3, "n_kv_heads": 2, "bias": "all"},
    {"n_heads": 3, "n_kv_heads": 1, "d_value": 5},
    {"n_heads": 2, "d_head": 5, "d_value": 1, "scores": {"scale": 0.3}},
], ids=["multi-head", "grouped", "multi-query", "free sizes"])
def test_heads_and_sizes(backend: str, fields: dict[str, Any]) -> None:
    agree(build(backend=backend, **fields), scale=fields.get("scores", {}).get("scale"))


def test_one_bias_without_the_other() -> None:
    layer = build(n_heads=2, bias="qkv")
    assert layer.output.bias is None
    agree(layer)
    layer = build(n_heads=2, bias="output")
    assert layer.qkv.bias is None
    reference = fused_attention(2, 2, 3, mask=masks.dense(masks.causal, range(T), range(T)))
    x = vectors()
    require_agreement(layer(x).y, arguments(layer, x), lambda x, qkv, out, b: reference(x[0], qkv, out, None, b)[None])


def test_all_projections_but_that_of_keys_have_a_bias() -> None:
    layer = build(n_heads=4, d_head=3, n_kv_heads=2, bias="all_but_keys")
    assert layer.qkv.bias is None and layer.qv_bias is not None and layer.qv_bias.shape == (12 + 6,)
    reference = fused_attention(4, 2, 3, mask=masks.dense(masks.causal, range(T), range(T)))

    def by_hand(x: Any, qkv: Any, out: Any, out_bias: Any, bias: Any) -> Any:
        return reference(x[0], qkv, out, np.concatenate([bias[:12], np.zeros(6), bias[12:]]), out_bias)[None]

    x = vectors()
    require_agreement(layer(x).y, [*arguments(layer, x), layer.qv_bias], by_hand)
    # The queries and keys of vectors that are no tokens have the same biases.
    q, k = layer.content(x[0])
    assert_close(q.flatten(1), x[0] @ layer.qkv.weight[:12].T + layer.qv_bias[:12], rtol=1e-12, atol=1e-13)
    assert_close(k.flatten(1), x[0] @ layer.qkv.weight[12:18].T, rtol=1e-12, atol=1e-13)


def test_scores_are_capped() -> None:
    agree(build(n_heads=2, scores={"softcap": 0.4}), softcap=0.4)


def test_queries_keys_and_values_are_clipped() -> None:
    layer = build(n_heads=4, n_kv_heads=2, d_head=3, bias="all", clip_qkv=0.7)
    projected = layer.qkv(vectors()).abs()
    assert 0.1 < (projected > 0.7).double().mean() < 0.9
    agree(layer, clip=0.7)


@pytest.mark.parametrize(("position", "over"), [(None, "head"), ("rope", "head"), ("rope", "heads")])
def test_queries_and_keys_are_normalised_before_they_are_turned(position: str | None, over: str) -> None:
    fields = {"position": position} if position else {}
    heads = 2 if over == "head" else 4
    layer = build(n_heads=heads, d_head=4, n_kv_heads=heads // 2, qk_norm="rmsnorm", qk_norm_over=over, **fields)
    names = ("norm_q", "norm_k") if over == "head" else ("norm_all_q", "norm_all_k")
    theta = rope_frequencies.base_frequencies(4)
    turn = (lambda y: rope.rope_interleaved(y, np.arange(len(y)), theta)) if position else None
    q_norm, k_norm = layer.q_norm, layer.k_norm
    assert q_norm is not None
    assert k_norm is not None
    weights = [q_norm.weight, k_norm.weight]
    x = vectors()

    def run(x: Any, qkv: Any, out: Any, q_weight: Any, k_weight: Any) -> Any:
        stages = dict(zip(names, (lambda y: norms.rmsnorm(y, q_weight), lambda y: norms.rmsnorm(y, k_weight)),
                          strict=True))
        reference = fused_attention(heads, heads // 2, 4, mask=masks.dense(masks.causal, range(T), range(T)),
                                    rotate_q=turn, rotate_k=turn, **stages)
        return reference(x[0], qkv, out)[None]

    require_agreement(layer(x).y, [*arguments(layer, x), *weights], run)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize(("mask", "rule"), [
    ("causal & window(3)", lambda i, j: masks.window(i, j, 3)),
    (f"window({T - 1})", lambda i, j: masks.window(i, j, T - 1)),  # one token more than the plain causal kernel serves
    ("bidirectional", lambda i, j: True),
    ("symmetric_window(1, 2)", lambda i, j: -1 <= j - i <= 2),
    ("strided(3)", lambda i, j: masks.strided(i, j, 3)),
])
def test_masks(backend: str, mask: str, rule: Any) -> None:
    agree(build(n_heads=2, mask=mask, backend=backend), mask=masks.dense(rule, range(T), range(T)))


def test_heads_with_masks_of_their_own() -> None:
    layer = build(n_heads=3, n_kv_heads=1, mask="per_head(window(2), causal, strided(2))")
    rules = [lambda i, j: masks.window(i, j, 2), masks.causal, lambda i, j: masks.strided(i, j, 2)]
    agree(layer, mask=np.stack([masks.dense(rule, range(T), range(T)) for rule in rules]))


def test_a_prefix_is_seen_both_ways() -> None:
    flags = torch.tensor([[True] * 3 + [False] * 4])
    agree(build(n_heads=2, mask="causal | prefix"), Span(prefix=flags),
          mask=masks.dense(lambda i, j: masks.prefix(i, j, 3), range(T), range(T)))


@pytest.mark.parametrize("mask", ["causal", "bidirectional", "causal & window(2)"])
def test_packed_documents_do_not_see_each_other(mask: str) -> None:
    begins = [True, False, False, True, False, True, False]
    rules = {"causal": masks.causal, "bidirectional": lambda i, j: True,
             "causal & window(2)": lambda i, j: masks.window(i, j, 2)}
    fence = masks.dense(lambda i, j: rules[mask](i, j) and masks.same_document(i, j, begins), range(T), range(T))
    agree(build(n_heads=2, mask=mask), Span(begins=torch.tensor([begins])), mask=fence)


@pytest.mark.parametrize("layout", ["interleaved", "half_split"])
def test_rotary_positions(layout: str) -> None:
    theta = rope_frequencies.base_frequencies(4, 100.0)
    turn = {"interleaved": rope.rope_interleaved, "half_split": rope.rope_half_split}[layout]
    layer = build(n_heads=2, d_head=4, position={"kind": "rope", "layout": layout, "base": 100.0})
    stages = {name: lambda y: turn(y, np.arange(T), theta) for name in ("rotate_q", "rotate_k")}
    agree(layer, **stages)
    places = np.array([0.0, 0.5, 3.0, 3.0, 1.0, -2.0, 9.0])
    stages = {name: lambda y: turn(y, places, theta) for name in ("rotate_q", "rotate_k")}
    agree(layer, Span(coordinates=torch.tensor(places)[None]), **stages)


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_linear_biases(backend: str) -> None:
    agree(build(n_heads=3, d_head=2, position="alibi", backend=backend),
          bias=alibi.bias(alibi.slopes_press(3), range(T), range(T)))


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_torch_s_multi_head_attention(causal: bool) -> None:
    layer = build(n_heads=2, bias="all", mask="causal" if causal else "bidirectional")
    foreign = nn.MultiheadAttention(D, 2, batch_first=True, dtype=torch.float64)
    foreign.load_state_dict({"in_proj_weight": layer.qkv.weight, "in_proj_bias": layer.qkv.bias,
                             "out_proj.weight": layer.output.weight, "out_proj.bias": layer.output.bias})
    x = vectors(rows=3)
    hidden = ~torch.ones(T, T, dtype=torch.bool).tril() if causal else None
    wanted, _ = foreign(x, x, x, attn_mask=hidden, need_weights=False)
    assert_close(layer(x).y, wanted, rtol=1e-12, atol=1e-13)
    count = torch.tensor([7, 4, 1])
    padded, _ = foreign(x, x, x, attn_mask=hidden, key_padding_mask=torch.arange(T) >= count[:, None],
                        need_weights=False)
    y = layer(x, None, Span(count=count)).y
    for row, length in enumerate(count.tolist()):
        assert_close(y[row, :length], padded[row, :length], rtol=1e-12, atol=1e-13)
        assert y[row, length:].abs().sum() == 0


def test_weights_are_dropped_only_in_training() -> None:
    layer = build(n_heads=2, scores={"dropout": 0.5})
    x = vectors()
    assert_close(layer(x).y, build(n_heads=2)(x).y, rtol=0, atol=0)
    assert not torch.equal(layer.train()(x).y, layer(x).y)


def test_a_mask_that_sees_later_tokens_has_no_state() -> None:
    with pytest.raises(UnsupportedError, match=r"init_state: under the mask bidirectional tokens attend to later ones, "
                                               r"so attention has no state. Call it without a state"):
        build(n_heads=2, mask="bidirectional").init_state(1)


@pytest.mark.parametrize(("fields", "message"), [
    ({"n_heads": 4, "n_kv_heads": 3, "d_head": 2}, "mixer.n_kv_heads: 4 query heads do not divide into 3 key/value "
     "heads. Choose n_kv_heads among the divisors of n_heads."),
    ({"n_heads": 4}, "mixer.n_heads: d_model 6 does not divide into 4 heads. Choose another number of heads, or give "
     "d_head."),
    ({"n_heads": 2, "backend": "sdpa", "scores": {"softcap": 1.0}}, "mixer.backend: the form 'sdpa' cannot express "
     "a softcap. Use 'auto' or 'reference'."),
    ({"n_heads": 3, "mask": "per_head(causal, window(2))"}, "mixer.mask: per_head(causal, window(2)) distinguishes "
     "2 heads, which does not divide 3 heads. Choose n_heads among its multiples."),
    ({"n_heads": 2, "position": "learned"}, "mixer.position: 'learned' acts on embeddings, not inside attention. Put "
     "it in the model's `position`."),
    ({"n_heads": 2, "d_head": 3, "position": "rope"}, "mixer.position.rot: 3 rotary features in heads of d_head 3. "
     "Give an even number of at most 3, or another d_head."),
])
def test_pairs_that_do_not_fit(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(AttentionConfig, fields).build(Dims(D, context=32, path="mixer"))
    assert caught.value.problems == (message,)


def test_a_window_of_nothing_is_refused_where_it_stands() -> None:
    with pytest.raises(ConfigError, match=r"mask: window: size is 0, but a window holds at least the query's own key."):
        parse_part(("mixer",), {"kind": "attention", "mask": "causal & window(0)"})

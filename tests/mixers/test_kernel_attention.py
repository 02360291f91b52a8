"""Linear attention and fast weights against the NumPy oracle, values and gradients; refusals; extreme inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oracles import linear_attention as oracle
from oracles import rope
from oracles.finite_difference import gradient_agrees
from weft.core.config import parse, parse_part
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.model import EncoderInputs
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.mixers.linear_attention import LinearAttention, LinearAttentionConfig
from weft.ops.feature_maps import FLOOR, running_maximum

D, T, HEADS, KV, SIZE, VALUE = 5, 9, 4, 2, 4, 3
BEGINS = [False, False, False, True, False, False, False, True, False]
Array = np.ndarray[Any, Any]
MAPS = {"elu": oracle.elu_plus_one, "relu": lambda x: np.maximum(x, 0) + FLOOR, "identity": lambda x: x}


def build(d_model: int = D, **options: Any) -> LinearAttention:
    torch.manual_seed(0)
    sizes = {"n_heads": HEADS, "n_kv_heads": KV, "d_head": SIZE, "d_value": VALUE}
    return parse(LinearAttentionConfig, {**sizes, **options}).build(Dims(d_model)).double()


def reference(options: dict[str, Any], begins: list[bool] | None) -> Any:
    """The mixer of one row, head by head."""
    positions = np.array([t - max(s for s in range(t + 1) if s == 0 or (begins or [False] * T)[s]) for t in range(T)])
    theta = 10000.0 ** (-2 * np.arange(SIZE // 2) / SIZE)

    def mixer(x: Array, weight: Array, output: Array) -> Array:
        q, k, v = np.split(x @ weight.T, np.cumsum([HEADS * SIZE, KV * SIZE]), axis=1)
        phi, rows = MAPS[options.get("feature_map", "elu")], []
        for head in range(HEADS):
            kv = head // (HEADS // KV)
            query, key = (phi(part[:, n * SIZE:(n + 1) * SIZE]) for part, n in ((q, head), (k, kv)))
            turned = (tuple(rope.rope_interleaved(each, positions, theta) for each in (query, key))
                      if "position" in options else None)
            rows.append(oracle.weighted_mean(query, key, v[:, kv * VALUE:(kv + 1) * VALUE], begins=begins,
                                             causal=options.get("mask") != "bidirectional", turned=turned,
                                             normalise=options.get("normalise", True)))
        return np.concatenate(rows, axis=1) @ output.T

    return mixer


CASES: list[dict[str, Any]] = [
    {}, {"position": "rope"}, {"mask": "bidirectional"}, {"mask": "bidirectional", "position": "rope"},
    {"feature_map": "relu"}, {"feature_map": "identity", "normalise": False}, {"normalise": False, "position": "rope"},
    {"normalise": False, "mask": "bidirectional"}]


@pytest.mark.parametrize("begins", [None, BEGINS], ids=["one document", "documents"])
@pytest.mark.parametrize("options", CASES, ids=str)
def test_values_and_gradients_match_the_oracle(options: dict[str, Any], begins: list[bool] | None) -> None:
    layer = build(**options)
    x = torch.randn(1, T, D, dtype=torch.float64, requires_grad=True)
    y = layer(x, None, Span(begins=None if begins is None else torch.tensor([begins]))).y
    mixer, parameters = reference(options, begins), [layer.qkv.weight, layer.output.weight]
    args = [x.detach()[0].numpy(), *(p.detach().numpy() for p in parameters)]
    np.testing.assert_allclose(y[0].detach().numpy(), mixer(*args), rtol=1e-11, atol=1e-12)
    cotangent = torch.randn_like(y)
    gradients = torch.autograd.grad((y * cotangent).sum(), [x, *parameters])
    found = [gradients[0][0].numpy(), *(g.numpy() for g in gradients[1:])]
    assert gradient_agrees(mixer, args, found, np.random.default_rng(0), cotangent=cotangent[0].numpy(), n_directions=1)


def test_the_rotated_denominator_would_be_another_layer() -> None:
    """Rotated features are not positive: their sum, unlike that of the features, is negative somewhere."""
    torch.manual_seed(0)
    q, k = (oracle.elu_plus_one(np.random.default_rng(n).normal(size=(60, 2))) for n in (0, 1))
    turned = [rope.rope_interleaved(each, np.arange(60), np.ones(1)) for each in (q, k)]
    scores = turned[0] @ turned[1].T
    assert scores.min() < 0 < (q @ k.T).min()


def test_the_state_is_as_large_after_a_thousand_tokens_as_before_the_first() -> None:
    layer = build()
    state = layer.init_state(2)
    size = layer.init_state(2).nbytes()
    for _ in range(4):
        state = layer(torch.randn(2, 250, D, dtype=torch.float64), state).state
    assert state.nbytes() == size
    assert state.sums.shape == (2, KV, SIZE, VALUE) and state.normaliser.shape == (2, KV, SIZE)


def test_bfloat16_sums_are_float32() -> None:
    """300 tokens: a sum in bfloat16 would stop growing at 256 times its terms."""
    exact, rough = build(8).float(), build(8).to(torch.bfloat16)
    with torch.no_grad():
        for one, other in zip(exact.parameters(), rough.parameters(), strict=True):
            one.copy_(other.float())
    x = torch.randn(2, 300, 8).to(torch.bfloat16)
    out, expected = rough(x, rough.init_state(2)), exact(x.float(), exact.init_state(2))
    assert out.y.dtype == torch.bfloat16 and out.state.sums.dtype == torch.float32
    # Projections are rounded to 8 bits, so every term is off by up to a percent; of their sum that is less.
    torch.testing.assert_close(out.state.sums, expected.state.sums, rtol=1e-2, atol=0.3)
    torch.testing.assert_close(out.y.float(), expected.y, rtol=0.05, atol=0.05)


def test_very_negative_features_do_not_vanish() -> None:
    """elu(x) + 1 is 0 in float32 for x below -17, and 0 / 0 then."""
    layer = build(SIZE, n_heads=1, n_kv_heads=1).float()
    with torch.no_grad():
        layer.qkv.weight.zero_()[:SIZE * 2].copy_(torch.eye(SIZE).repeat(2, 1))
        layer.qkv.weight[SIZE * 2:, 0] = 1
    x = torch.full((1, 5, SIZE), -30.0, requires_grad=True)
    y = layer(x).y
    y.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    torch.testing.assert_close(y, layer.output(torch.full((1, 5, VALUE), -30.0)))


def test_a_query_whose_products_all_underflow_reads_nothing() -> None:
    layer = build(SIZE, n_heads=1, n_kv_heads=1).float()
    x = torch.full((1, 3, SIZE), -1e4, requires_grad=True)
    with torch.no_grad():
        layer.qkv.weight.zero_()[:SIZE * 2].copy_(torch.eye(SIZE).repeat(2, 1))
    y = layer(x).y
    y.sum().backward()
    assert not y.any() and x.grad is not None and x.grad.isfinite().all()


def test_the_largest_so_far_is_that_of_the_document() -> None:
    x = torch.randn(2, 21, 3)
    starts = torch.rand(2, 21) < 0.2
    expected = x.clone()
    for row in range(2):
        for t in range(1, 21):
            if not starts[row, t]:
                expected[row, t] = torch.maximum(expected[row, t - 1], x[row, t])
    assert torch.equal(running_maximum(x, starts), expected)
    assert torch.equal(running_maximum(x, torch.zeros_like(starts)), running_maximum(x, None))


def test_positions_on_scores_are_refused() -> None:
    for kind in ("linear_attention", "performer", "retention"):
        with pytest.raises(ConfigError, match=r"position: 'alibi' acts on scores, and this mixer computes no score of a"
                           r" query and a key\. Give one that acts on queries and keys, such as 'rope', or use"):
            parse_part(("mixer",), {"kind": kind, "position": "alibi"}).build(Dims(16))
        with pytest.raises(ConfigError, match=r"position: 'sinusoidal' acts on embeddings, not inside a mixer\. Put "):
            parse_part(("mixer",), {"kind": kind, "position": "sinusoidal"}).build(Dims(16))


@pytest.mark.parametrize("kind", ["linear_attention", "performer"])
def test_masks_that_no_common_sum_expresses_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"mask: .*window.* gives tokens sums of different keys.*Give 'causal' or "
                       r"'bidirectional', or use the mixer 'attention'"):
        parse_part(("mixer",), {"kind": kind, "mask": "causal & window(3)"})


def test_signed_features_are_not_normalised() -> None:
    with pytest.raises(ConfigError, match=r"feature_map: the products .* have either sign.*set normalise to false"):
        parse(LinearAttentionConfig, {"feature_map": "identity"})


def test_a_bidirectional_layer_has_no_state_and_no_place_in_a_decoder() -> None:
    layer = build(mask="bidirectional")
    with pytest.raises(UnsupportedError, match=r"under a bidirectional mask .* Call it without a state"):
        layer.init_state(2)
    config = parse_part(("model",), {"kind": "decoder", "vocab_size": 9, "d_model": 8, "context": 8, "blocks": [
        {"kind": "pre", "layers": [{"kind": "linear_attention", "mask": "bidirectional"}]}]})
    with pytest.raises(ConfigError, match=r"lets a token see later ones.*Give a causal mask"):
        config.build(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["linear_attention", "performer"])
def test_an_encoder_reads_both_sides(kind: str) -> None:
    torch.manual_seed(0)
    layer = {"kind": kind, "n_heads": 2, "mask": "bidirectional", "position": "rope"}
    model: Any = parse_part(("encoder", "model"), {"kind": "encoder", "vocab_size": 9, "d_model": 8, "context": 8,
                                                   "blocks": [{"kind": "pre", "layers": [layer]}]}).build(Dims(8))
    found = [model(EncoderInputs(tokens=torch.tensor([[1, 2, 3, last]])))[0, 0] for last in (4, 5)]
    assert not torch.equal(*found)

"""Attention maps are the weights that the model used: computed again by hand from its matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pictures.reading import fields
from weft.core.errors import InputError, UnsupportedError
from weft.core.model import EncoderInputs, Model, built_model, parse_model
from weft.core.probes import probe
from weft.pictures.attention import AttentionMap, attention_maps, head_numbers, map_figure

MLP = {"kind": "mlp", "d_ff": 12}


def model(**changes: Any) -> Model:
    torch.manual_seed(0)
    data = {"kind": "decoder", "vocab_size": 11, "context": 16, "d_model": 8, "blocks": [
        {"repeat": 2, "of": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 4, "n_kv_heads": 2}, MLP]}]}]}
    built = built_model(parse_model({**data, **changes})).double()
    with torch.no_grad():
        for parameter in built.parameters():  # weights that attend to some tokens more than to others
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    return built


def translator() -> Model:
    both_ways = [{"kind": "attention", "n_heads": 2, "mask": "bidirectional"}, MLP]
    return model(kind="encoder_decoder",
                 blocks=[{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2},
                                                    {"kind": "cross_attention", "n_heads": 2}]}],
                 encoder={"kind": "encoder", "vocab_size": 9, "d_model": 8,
                          "blocks": [{"kind": "pre", "layers": both_ways}]})


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    shares: np.ndarray = exponentials / exponentials.sum(-1, keepdims=True)
    return shares


def by_hand(q: Tensor, k: Tensor, *, causal: bool) -> np.ndarray:
    """softmax(q.k / sqrt(E)) head by head, from queries [T,H,E] and keys [S,K,E]."""
    queries, keys = q.detach().numpy(), k.detach().numpy()
    group, found = queries.shape[1] // keys.shape[1], []
    for head in range(queries.shape[1]):
        scores = queries[:, head] @ keys[:, head // group].T / math.sqrt(queries.shape[2])
        found.append(softmax(np.where(np.tri(*scores.shape, dtype=bool) | (not causal), scores, -np.inf)))
    return np.stack(found)


def test_causal_maps_are_the_softmax_of_the_model_s_own_queries_and_keys() -> None:
    built, tokens = model(), [3, 1, 4, 1, 5, 9, 2]
    first, second = attention_maps(built, tokens)
    assert [first.path, second.path] == ["stack.layers.0.layers.0", "stack.layers.1.layers.0"]
    for found, block in ((first, "stack.layers.0"), (second, "stack.layers.1")):
        with probe(built, f"{block}.norms.0.output") as values:
            built.vectors(EncoderInputs(tokens=torch.tensor([tokens])))
        [x] = next(iter(values.values()))
        layer = built.get_submodule(found.path)
        q, k, _ = (x[0] @ layer.qkv.weight.T).split([8, 4, 4], -1)
        expected = by_hand(q.unflatten(-1, (4, 2)), k.unflatten(-1, (2, 2)), causal=True)
        # Softmax is computed in float64 on both sides.
        np.testing.assert_allclose(found.weights.numpy(), expected, atol=1e-12)
        assert not found.cross


def test_an_encoder_decoder_has_maps_of_the_source_of_the_target_and_across() -> None:
    built, tokens, source = translator(), [3, 1, 4], [1, 5, 2, 6, 5]
    encoder, own, cross = attention_maps(built, tokens, source)
    assert [each.title() for each in (encoder, own, cross)] == [
        "Encoder, block 0: attention", "Block 0: attention", "Block 0: cross-attention"]
    assert [each.weights.shape for each in (encoder, own, cross)] == [(2, 5, 5), (2, 3, 3), (2, 3, 5)]
    assert [each.cross for each in (encoder, own, cross)] == [False, False, True]
    with torch.no_grad():
        memory = built.encode(EncoderInputs(tokens=torch.tensor([source]))).h  # type: ignore[operator]
        x = built.embedding.tokens.weight[tokens]  # type: ignore[union-attr,index]
        block: Any = built.get_submodule("stack.layers.0")
        attended = block.layers[0](block.norms[0](x[None])).y[0]
        queries = (block.norms[1](x + attended) @ block.layers[1].q.weight.T).unflatten(-1, (2, 4))
        keys = (memory[0] @ block.layers[1].kv.weight.T)[:, :8].unflatten(-1, (2, 4))
    np.testing.assert_allclose(cross.weights.numpy(), by_hand(queries, keys, causal=False), atol=1e-12)


def test_an_encoder_s_maps_look_both_ways() -> None:
    built = translator().get_submodule("encoder")
    assert isinstance(built, Model)
    [found] = attention_maps(built, [1, 5, 2])
    assert bool((found.weights > 0).all())
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(2, 3, dtype=torch.float64))


def test_entropy_and_sinks_of_weights_drawn_by_hand() -> None:
    uniform, sink = np.full((4, 4), 0.25), np.eye(4)[[0, 0, 0, 0]]
    half = sink * 0.5  # the other half is on a learned sink
    found = head_numbers(AttentionMap("a", False, torch.tensor(np.stack([uniform, sink, half]))))
    assert [each.entropy for each in found] == pytest.approx([math.log(4), 0.0, 0.0])
    assert [each.on_first for each in found] == pytest.approx([0.25, 1.0, 0.5])
    assert [each.sink for each in found] == pytest.approx([0.0, 0.0, 0.5])


def test_shares_on_first_tokens_are_those_of_later_queries() -> None:
    causal = torch.tensor(np.tril(np.ones((6, 6))) / np.arange(1, 7)[:, None])[None]
    [found] = head_numbers(AttentionMap("a", False, causal))
    assert found.on_first == pytest.approx(np.mean([1 / n for n in range(2, 7)]))
    assert found.on_first_four == pytest.approx(np.mean([4 / 5, 4 / 6]))
    [across] = head_numbers(AttentionMap("a", True, causal))
    assert across.on_first == pytest.approx(np.mean([1 / n for n in range(1, 7)]))


def test_the_picture_is_the_weights() -> None:
    maps = attention_maps(model(), [3, 1, 4, 1, 5, 9, 2])
    drawn = fields(map_figure(maps[0], "a"))
    np.testing.assert_allclose(np.stack(drawn), np.sqrt(maps[0].weights.numpy()), atol=0.51 / 255)


def test_a_model_without_attention_is_told() -> None:
    with pytest.raises(UnsupportedError, match=r"'decoder' without attention has no attention maps. Draw it without"):
        attention_maps(model(blocks=[{"kind": "pre", "layers": ["gru"]}]), [1])


def test_rows_that_cannot_be_drawn_are_told() -> None:
    with pytest.raises(InputError, match=r"17 tokens, of which 16 have positions in this model. Give a shorter text"):
        attention_maps(model(position="learned"), [1] * 17)
    with pytest.raises(InputError, match="600 tokens, of which 512 are drawn at most"):
        attention_maps(model(), [1] * 600)
    with pytest.raises(InputError, match=r"no tokens. Give a text"):
        attention_maps(model(), [])
    with pytest.raises(InputError, match="the id 11, and the vocabulary has the ids 0 to 10"):
        attention_maps(model(), [11])
    with pytest.raises(InputError, match=r"the model reads a source. Give one \(--source\)"):
        attention_maps(translator(), [1])
    with pytest.raises(InputError, match=r"the model reads no source. Leave it out"):
        attention_maps(model(), [1], [1])

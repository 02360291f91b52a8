"""The encoder-decoder against the transformer of 2017 composed from the oracles, and its two ways to read a source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import fused_attention, randomise, require_agreement
from oracles import attention, feedforward, masks, norms, positions
from weft.core.config import parse
from weft.core.errors import ConfigError, InputError
from weft.core.layer import traits_of
from weft.core.model import EncoderInputs
from weft.core.span import Memory, Span
from weft.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig

V, D, T, S, HEADS = 11, 6, 4, 5, 2
MLP = {"kind": "mlp", "d_ff": 7}
SELF = {"kind": "attention", "n_heads": HEADS}
ENCODER = {"kind": "encoder", "vocab_size": V, "d_model": D, "position": "sinusoidal",
           "blocks": [{"kind": "post", "layers": [{**SELF, "mask": "bidirectional"}, MLP]}]}
BASE = {"vocab_size": V, "d_model": D, "position": "sinusoidal", "encoder": ENCODER, "tied_source": True,
        "blocks": [{"kind": "post", "layers": [SELF, {"kind": "cross_attention", "n_heads": HEADS}, MLP]}]}


def build(**fields: Any) -> EncoderDecoder:
    model = parse(EncoderDecoderConfig, {**BASE, **fields}).build().double().eval()
    randomise(model)
    return model


def ids(rows: int, steps: int) -> Tensor:
    return torch.randint(V, (rows, steps), generator=torch.Generator().manual_seed(steps))


def feed(x: Any, weights: list[Any]) -> Any:
    up, up_bias, down, down_bias = weights
    return feedforward.mlp(x, up, down, up_bias, down_bias, "gelu")


def encoded(x: Any, weights: list[Any]) -> Any:
    x = norms.layernorm(x + fused_attention(HEADS, HEADS, D // HEADS)(x, *weights[:2]), *weights[6:8])
    return norms.layernorm(x + feed(x, weights[2:6]), *weights[8:10])


def decoded(x: Any, memory: Any, weights: list[Any]) -> Any:
    causal = masks.dense(masks.causal, range(T), range(T))
    qkv, out, w_q, w_kv, w_o = weights[:5]
    x = norms.layernorm(x + fused_attention(HEADS, HEADS, D // HEADS, mask=causal)(x, qkv, out), *weights[9:11])
    read = attention.multi_head_attention(x, w_q, w_kv[:D], w_kv[D:], w_o, HEADS, memory=memory)
    x = norms.layernorm(x + read, *weights[11:13])
    return norms.layernorm(x + feed(x, weights[5:9]), *weights[13:15])


def test_it_is_the_transformer_with_three_way_tied_embeddings() -> None:
    model, tokens, source = build(), ids(1, T), ids(1, S)
    names = [name for name, _ in model.named_parameters()]
    assert names[0] == "embedding.tokens.weight"
    assert names[16].startswith("encoder.stack")
    root = D ** 0.5  # section 3.4 multiplies embeddings by it
    waves = {n: positions.sinusoidal_interleaved(range(n), D) for n in (T, S)}

    def transformer(table: Any, *weights: Any) -> Any:
        memory = encoded(root * table[source[0]] + waves[S], list(weights[15:]))
        return decoded(root * table[tokens[0]] + waves[T], memory, list(weights[:15])) @ table.T

    memory = model.encode(EncoderInputs(tokens=source))
    y = model(tokens, None, Span(memory=memory)).y[0]
    require_agreement(y, list(model.parameters()), transformer)


def test_tied_embeddings_are_one() -> None:
    model = build()
    assert model.encoder.embedding.tokens.weight is model.embedding.tokens.weight
    assert model.readout.weight is model.embedding.tokens.weight
    apart = build(tied_source=False)
    assert apart.encoder.embedding.tokens is not apart.embedding.tokens
    count = [sum(p.numel() for p in each.parameters()) for each in (model, apart)]
    assert count[1] - count[0] == V * D


@pytest.mark.parametrize("blocks", [BASE["blocks"], [{"kind": "pre", "layers": [
    "gru", {"kind": "cross_attention", "n_heads": 2}]}]], ids=["attention", "recurrent"])
def test_a_state_started_with_the_memory_equals_a_call_with_it(blocks: Any) -> None:
    model, tokens, source, count = build(blocks=blocks), ids(3, T), ids(3, S), torch.tensor([5, 2, 4])
    memory = model.encode(EncoderInputs(tokens=source), Span(count=count))
    assert memory.count is count
    whole = model(tokens, None, Span(memory=memory)).y
    state, pieces = model.init_state(3, memory=memory), []
    for chunk in tokens.split([1, 2, 1], dim=1):
        out = model(chunk, state)
        pieces.append(out.y)
        state = out.state
    assert_close(torch.cat(pieces, 1), whole, rtol=1e-12, atol=1e-12)
    alone = model.encode(EncoderInputs(tokens=source[1:2, :2]))
    assert_close(model(tokens[1:2], None, Span(memory=alone)).y[0], whole[1], rtol=1e-12, atol=1e-12)


def test_it_takes_a_source_and_its_decoder_stays_causal() -> None:
    model = build()
    assert model.takes_source
    assert traits_of(model) == frozenset()
    with pytest.raises(InputError, match=r"memory: cross-attention has no memory to read"):
        model(ids(1, T))
    with pytest.raises(InputError, match=r"memory: the memory has 2 rows for 3 rows of tokens"):
        model.init_state(3, memory=Memory(torch.zeros(2, S, D, dtype=torch.float64)))


@pytest.mark.parametrize(("fields", "message"), [
    ({"encoder": {**ENCODER, "d_model": 8}}, "encoder.d_model: 8 where the decoder has 6. Give both the same width."),
    ({"encoder": {**ENCODER, "vocab_size": 12}}, "tied_source: source vocabulary 12, target 11. Share one vocabulary, "
     "or untie."),
    ({"encoder": {"shared": "x"}}, "encoder: no encoder can be shared, got a reference to 'x'. Write it out here."),
    ({"encoder": {**ENCODER, "position": {"kind": "binary", "digits": 2, "join": "concatenate"}}},
     "tied_source: token embeddings of 4 features in the encoder, 6 in the decoder. Give both the same positions, or "
     "untie."),
])
def test_sides_that_do_not_fit(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(**fields)
    assert caught.value.problems == (message,)

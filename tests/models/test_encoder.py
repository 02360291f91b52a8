"""The encoder against a composition from the oracles: segments, padding, and inputs it does not read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import fused_attention, randomise, require_agreement
from oracles import feedforward, norms
from weft.core.config import parse
from weft.core.declarations import Trait
from weft.core.errors import InputError
from weft.core.layer import traits_of
from weft.core.model import EncoderInputs
from weft.core.span import Span
from weft.models.encoder import TokenEncoder, TokenEncoderConfig

V, D, S, HEADS = 11, 6, 5, 2
BLOCK = {"kind": "post", "layers": [{"kind": "attention", "n_heads": HEADS, "mask": "bidirectional"},
                                    {"kind": "mlp", "d_ff": 7}]}
BASE = {"vocab_size": V, "context": 16, "d_model": D, "position": "learned", "blocks": [BLOCK]}


def build(**fields: Any) -> TokenEncoder:
    encoder = parse(TokenEncoderConfig, {**BASE, **fields}).build().double().eval()
    randomise(encoder)
    return encoder


def ids(rows: int = 1, high: int = V) -> Tensor:
    return torch.randint(high, (rows, S), generator=torch.Generator().manual_seed(high))


def test_it_is_bert_s_sum_then_norm_then_post_norm_blocks() -> None:
    encoder = build(n_types=2, embedding={"norm": "layernorm"})
    tokens, types = ids(), ids(high=2)
    assert [name for name, _ in encoder.named_parameters()][:5] == [
        "embedding.position.table", "embedding.tokens.weight", "embedding.norm.weight", "embedding.norm.bias",
        "types.weight"]

    def bert(*weights: Any) -> Any:
        positions, table, scale, shift, segments, qkv, out, up, up_bias, down, down_bias, w1, b1, w2, b2 = weights
        x = norms.layernorm(table[tokens[0]] + positions[:S] + segments[types[0]], scale, shift)
        x = norms.layernorm(x + fused_attention(HEADS, HEADS, D // HEADS)(x, qkv, out), w1, b1)
        return norms.layernorm(x + feedforward.mlp(x, up, down, up_bias, down_bias, "gelu"), w2, b2)

    y = encoder(EncoderInputs(tokens=tokens, types=types))[0]
    require_agreement(y, list(encoder.parameters()), bert)


def test_types_that_are_left_out_are_0() -> None:
    encoder, tokens = build(n_types=2), ids(2)
    left_out, given = (encoder(EncoderInputs(tokens=tokens, types=types)) for types in (None, torch.zeros_like(tokens)))
    assert torch.equal(left_out, given)
    assert not torch.equal(given, encoder(EncoderInputs(tokens=tokens, types=torch.ones_like(tokens))))


def test_narrow_inputs_are_normalised_before_the_map_to_the_model() -> None:
    """RoFormer's and ELECTRA's order: sum, norm, map with a bias."""
    encoder = build(d_input=4, n_types=2, embedding={"norm": "layernorm"}, head="masked_token")
    assert encoder.input is not None and encoder.embedding.tokens.embedding_dim == 4
    tokens, types = ids(), ids(high=2)

    def by_hand(*weights: Any) -> Any:
        positions, table, scale, shift, segments, w, b = weights
        return norms.layernorm(table[tokens[0]] + positions[:S] + segments[types[0]], scale, shift) @ w.T + b

    span = Span().resolve(None, tokens)
    x = encoder.input(encoder.embedding(tokens, span, encoder.types(types)))[0]
    embedding = encoder.embedding
    require_agreement(x, [embedding.position.table, embedding.tokens.weight, embedding.norm.weight, embedding.norm.bias,
                          encoder.types.weight, encoder.input.weight, encoder.input.bias], by_hand)
    y = encoder(EncoderInputs(tokens=tokens, types=types), Span(count=torch.tensor([3])))
    assert y.shape == (1, S, D) and y[0, 3:].abs().sum() == 0


def test_tokens_of_the_padding_id_are_not_counted() -> None:
    """Of ids p = 1: [5 p 6 p 7] has the positions [0 -1 1 -1 2], in each document from its beginning."""
    encoder = build(padding_id=1, position={"kind": "learned", "offset": 2, "max_length": 8})
    tokens, begins = torch.tensor([[5, 1, 6, 7, 1, 8]]), torch.tensor([[False, False, False, True, False, False]])
    for marks, wanted in ((None, [0, -1, 1, 2, -1, 3]), (begins, [0, -1, 1, 0, -1, 1])):
        given = Span(begins=marks, coordinates=torch.tensor([wanted]))
        found = encoder(EncoderInputs(tokens=tokens), Span(begins=marks))
        assert torch.equal(found, encoder(EncoderInputs(tokens=tokens), given))
        assert not torch.equal(found, build(position={"kind": "learned", "offset": 2, "max_length": 8})(
            EncoderInputs(tokens=tokens), Span(begins=marks)))
    assert encoder(EncoderInputs(tokens=tokens[:, :0])).shape == (1, 0, D)


def test_padding_is_not_seen_and_gives_zeros() -> None:
    encoder, tokens, count = build(norm="layernorm"), ids(3), torch.tensor([5, 3, 1])
    y = encoder(EncoderInputs(tokens=tokens), Span(count=count))
    for row, length in enumerate(count.tolist()):
        alone = encoder(EncoderInputs(tokens=tokens[row:row + 1, :length]))[0]
        assert_close(y[row, :length], alone, rtol=1e-12, atol=1e-13)
        assert y[row, length:].abs().sum() == 0


def test_every_token_sees_every_other() -> None:
    encoder, tokens = build(), ids()
    changed = tokens.clone()
    changed[0, -1] = (tokens[0, -1] + 1) % V
    difference = encoder(EncoderInputs(tokens=tokens)) - encoder(EncoderInputs(tokens=changed))
    assert difference.abs().amax(-1).min() > 1e-6
    assert Trait.BIDIRECTIONAL in traits_of(encoder)


def test_segments_start_with_the_embedding_s_spread() -> None:
    torch.manual_seed(0)
    config = parse(TokenEncoderConfig, {**BASE, "d_model": 600, "n_types": 8, "embedding": {"std": 0.1}})
    types = config.build().types
    assert types is not None
    # 4800 draws: the standard deviation's own is 0.1 / sqrt(9600) = 0.001.
    assert abs(types.weight.std().item() - 0.1) < 0.005


@pytest.mark.parametrize(("inputs", "message"), [
    (EncoderInputs(), r"inputs.tokens: missing: this encoder reads tokens. Give ids \[B,S\]."),
    (EncoderInputs(tokens=ids(), types=ids()), r"inputs.types: this encoder does not read types. Leave it out, or"),
    (EncoderInputs(patches=torch.zeros(1, 2, 3)), r"inputs.patches: this encoder does not read patches."),
    (EncoderInputs(tokens=ids(), globals_=ids() > 3), r"inputs.globals_: this encoder does not read globals_."),
])
def test_inputs_that_it_does_not_read(inputs: EncoderInputs, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()(inputs)


def test_segment_ids_fit_the_tokens_and_the_table() -> None:
    encoder = build(n_types=2)
    assert encoder.reads() == {"tokens": V, "types": 2} and build().reads() == {"tokens": V}
    tokens = ids()
    with pytest.raises(InputError, match=r"inputs.types: shape \(\d, 1\) for tokens of shape .* Give one segment "
                                         r"id for each token."):
        encoder(EncoderInputs(tokens=tokens, types=torch.zeros_like(tokens[:, :1])))
    with pytest.raises(InputError, match=r"inputs.types: a segment id outside 0 to 1. Give ids below n_types, or decl"):
        encoder(EncoderInputs(tokens=tokens, types=torch.full_like(tokens, 2)))
    beyond = torch.zeros_like(tokens)
    beyond[:, 1:] = 99
    encoder(EncoderInputs(tokens=tokens, types=beyond), Span(count=torch.ones(len(tokens), dtype=torch.int64)))

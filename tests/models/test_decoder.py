"""The decoder against a pre-norm transformer composed from the oracles, and what its embedding and readout do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import fused_attention, randomise, require_agreement
from oracles import feedforward, losses, masks, norms
from weft.core.config import parse
from weft.core.errors import ConfigError, InputError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.models.decoder import Decoder, DecoderConfig
from weft.positions.base import PositionConfig, PositionScheme

V, D, T, HEADS = 11, 6, 5, 2
BLOCK = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": HEADS}, {"kind": "mlp", "d_ff": 7}]}
BASE = {"vocab_size": V, "context": 16, "d_model": D, "norm": "layernorm", "blocks": [{"repeat": 2, "of": [BLOCK]}]}


class Wide(PositionScheme):
    """A user's scheme that claims every feature."""

    @property
    def width(self) -> int:
        return D


class WideConfig(PositionConfig):
    """See `Wide`."""

    def build(self, dims: Dims) -> Wide:
        return Wide()


def build(**fields: Any) -> Decoder:
    model = parse(DecoderConfig, {**BASE, **fields}).build().double().eval()
    randomise(model)
    return model


def ids(rows: int = 1, seed: int = 0) -> Tensor:
    return torch.randint(V, (rows, T), generator=torch.Generator().manual_seed(seed))


def block(x: Any, weights: list[Any]) -> Any:
    """x + attention(norm(x)), then x + mlp(norm(x)); weights in the order of the block's parameters."""
    qkv, out, up, up_bias, down, down_bias, w1, b1, w2, b2 = weights
    attend = fused_attention(HEADS, HEADS, D // HEADS, mask=masks.dense(masks.causal, range(T), range(T)))
    x = x + attend(norms.layernorm(x, w1, b1), qkv, out)
    return x + feedforward.mlp(norms.layernorm(x, w2, b2), up, down, up_bias, down_bias, "gelu")


def transformer(tokens: list[int], scale: float, tied: bool, *weights: Any) -> Any:
    """Logits [T,V] from a table of positions, a table of tokens, two blocks, a norm and a readout."""
    positions, table, *rest = weights
    x = scale * table[tokens] + positions[:T]
    x = block(block(x, rest[:10]), rest[10:20])
    return norms.layernorm(x, *rest[20:22]) @ (table if tied else rest[22]).T


@pytest.mark.parametrize("tied", [True, False])
def test_it_is_the_pre_norm_transformer_in_values_and_gradients(tied: bool) -> None:
    model = build(position="learned", embedding={"scale": 1.7}, readout={"kind": "linear", "tied": tied})
    names = [name for name, _ in model.named_parameters()]
    assert names[:2] == ["embedding.position.table", "embedding.tokens.weight"]
    assert len(names) == (24 if tied else 25)
    tokens = ids()
    require_agreement(model(tokens).y[0], list(model.parameters()),
                      lambda *weights: transformer(tokens[0].tolist(), 1.7, tied, *weights))


def test_rows_of_different_lengths_are_as_if_alone() -> None:
    model, tokens, count = build(position="learned"), ids(3), torch.tensor([5, 3, 1])
    y = model.hidden(tokens, None, Span(count=count)).y
    for row, length in enumerate(count.tolist()):
        alone = model.hidden(tokens[row:row + 1, :length]).y[0]
        assert_close(y[row, :length], alone, rtol=1e-12, atol=1e-13)
        assert y[row, length:].abs().sum() == 0


def test_chunks_with_a_state_equal_the_whole() -> None:
    model, tokens = build(position="learned"), ids(2)
    state, pieces = model.init_state(2), []
    for chunk in tokens.split([2, 0, 1, 2], dim=1):
        out = model(chunk, state)
        pieces.append(out.y)
        state = out.state
    assert_close(torch.cat(pieces, 1), model(tokens).y, rtol=1e-12, atol=1e-12)
    assert state.stack.clock is state.clock
    assert state.stack.layers[0].layers[0].clock is state.clock
    assert state.clock.seen.tolist() == [T, T]


@pytest.mark.parametrize("operation", [
    lambda state: state.select([1, 0]), lambda state: state.clone(), lambda state: state.to(dtype=torch.float64)])
def test_the_clock_of_all_layers_stays_one_through_operations_and_calls(operation: Any) -> None:
    model, tokens = build(), ids(2)
    state = operation(model(tokens[:, :3], model.init_state(2)).state)
    after = model(tokens[:, 3:], state).state
    for each in (state, after):
        clocks = {id(each.clock), id(each.stack.clock)}
        for inner in each.stack.layers:
            clocks |= {id(inner.clock), *(id(layer.clock) for layer in inner.layers)}
        assert len(clocks) == 1


def test_tied_weights_share_their_storage_and_are_counted_once() -> None:
    tied, untied = build(), build(readout={"kind": "linear", "tied": False})
    assert tied.readout.weight is tied.embedding.tokens.weight
    assert untied.readout.weight.data_ptr() != untied.embedding.tokens.weight.data_ptr()
    sizes = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    assert sizes[1] - sizes[0] == V * D
    moved = build().float()
    assert moved.readout.weight is moved.embedding.tokens.weight


def test_embeddings_are_scaled_then_normalised_with_positions() -> None:
    model = build(position="learned", embedding={"scale": 3.0, "norm": "rmsnorm"})
    tokens = ids()
    embedding = model.embedding
    wanted = norms.rmsnorm(3.0 * embedding.tokens.weight.detach().numpy()[tokens[0]]
                           + embedding.position.table.detach().numpy()[:T], embedding.norm.weight.detach().numpy())
    got = embedding(tokens, Span().resolve(None, tokens))
    np.testing.assert_allclose(got[0].detach().numpy(), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("tied", [True, False])
def test_narrow_embeddings_are_mapped_in_and_out(tied: bool) -> None:
    """OPT-350m: logits are those of the model with the products in the place of the narrow matrices."""
    narrow = build(embedding={"d_embedding": 4}, readout={"kind": "linear", "tied": tied, "d_embedding": 4})
    assert narrow.embedding.tokens.weight.shape == narrow.readout.weight.shape == (V, 4)
    assert (narrow.readout.weight is narrow.embedding.tokens.weight) == tied
    wide = build(readout={"kind": "linear", "tied": False})
    state = {name: tensor for name, tensor in narrow.state_dict().items() if "projection" not in name}
    state["embedding.tokens.weight"] = narrow.embedding.tokens.weight @ narrow.embedding.projection.weight.T
    state["readout.weight"] = narrow.readout.weight @ narrow.readout.projection.weight
    wide.load_state_dict(state)
    tokens = ids(2)
    assert_close(narrow(tokens).y, wide(tokens).y, rtol=1e-12, atol=1e-12)
    h, targets, scored = narrow.hidden(tokens).y, ids(2, seed=1), torch.ones(2, T, dtype=torch.bool)
    assert_close(narrow.readout.log_prob(h, targets), wide.readout.log_prob(h, targets), rtol=1e-12, atol=1e-12)
    (one, *_), (other, *_) = (each.readout.cross_entropy(h, targets, scored) for each in (narrow, wide))
    assert_close(one, other, rtol=1e-12, atol=1e-12)
    inference = narrow.readout.inference()
    assert_close(inference.logits(h), wide(tokens).y, rtol=1e-12, atol=1e-12)
    assert_close(inference.log_prob(h, targets), wide.readout.log_prob(h, targets), rtol=1e-12, atol=1e-12)


def test_a_tied_readout_of_another_width_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"there is no token embedding of width 6 to share. Set tied: false .* or the "
                                          r"same d_embedding in both."):
        build(embedding={"d_embedding": 4})


@pytest.mark.parametrize("width", [16, 128, 1024])
def test_logits_of_a_tied_readout_begin_with_the_same_size_at_every_width(width: int) -> None:
    """Behind a norm a vector has length sqrt(width), and each of the table's about 1."""
    torch.manual_seed(0)
    model = parse(DecoderConfig, {**BASE, "vocab_size": 2000, "d_model": width, "norm": "layernorm"}).build()
    logits = model(torch.arange(40)[None]).y.detach()
    # The deviation of 2,000 numbers is known to 2 %, and lengths of vectors of 16 features differ by 18 %.
    assert float(logits.std(-1).mean()) == pytest.approx(1.0, abs=0.15)


def test_a_new_embedding_has_the_declared_spread_and_drops_only_in_training() -> None:
    config = parse(DecoderConfig, {**BASE, "vocab_size": 2000, "embedding": {"std": 0.5, "dropout": 0.5}})
    torch.manual_seed(0)
    model = config.build()
    # 12000 draws: the standard deviation's own is 0.5 / sqrt(2 * 12000) = 0.003.
    assert abs(model.embedding.tokens.weight.std().item() - 0.5) < 0.015
    tokens = torch.arange(2000)[None]
    span = Span().resolve(None, tokens)
    whole = model.eval().embedding(tokens, span)
    dropped = model.train().embedding(tokens, span)
    assert_close(dropped[dropped != 0], 2 * whole[dropped != 0], rtol=1e-6, atol=0)
    assert abs((dropped == 0).double().mean().item() - 0.5) < 0.02


def test_a_concatenated_code_narrows_the_token_embedding() -> None:
    fields = {"position": {"kind": "binary", "digits": 2, "join": "concatenate"}}
    model = build(**fields, readout={"kind": "linear", "tied": False})
    assert model.embedding.tokens.weight.shape == (V, D - 2)
    assert model(ids()).y.shape == (1, T, V)
    with pytest.raises(ConfigError, match=r"readout.tied: there is no token embedding of width 6 to share. Set tied:"):
        build(**fields)
    with pytest.raises(ConfigError, match=r"position: its 6 features leave no room in d_model 6. Choose a larger d_mo"):
        build(position=WideConfig())


def test_logits_can_be_scaled_before_bias_and_cap() -> None:
    """In every form: logits, log-probabilities, the fused loss and the form without gradients."""
    model = build(readout={"kind": "linear", "tied": False, "bias": True, "softcap": 2.0, "scale": 0.25})
    readout, targets = model.readout, ids(2, seed=1)
    h = model.hidden(ids(2)).y
    raw = 0.25 * (h @ readout.weight.T) + readout.bias
    wanted = 2.0 * torch.tanh(raw / 2.0)
    torch.testing.assert_close(readout.logits(h), wanted)
    torch.testing.assert_close(readout.inference().logits(h), wanted)
    picked = wanted.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(readout.log_prob(h, targets), picked)
    loss = readout.cross_entropy(h, targets, torch.ones_like(targets, dtype=torch.bool))
    assert loss is not None
    torch.testing.assert_close(loss.loss, -picked.sum())


@pytest.mark.parametrize("readout", [{"bias": True, "softcap": 2.0}, {"tied": False, "bias": True}, {}])
def test_log_prob_is_gathered_from_the_logits(readout: dict[str, Any]) -> None:
    model, tokens, targets = build(readout={"kind": "linear", **readout}), ids(2), ids(2, seed=1)
    h = model.hidden(tokens).y
    wanted = np.stack([losses.gathered_log_prob(row, goals) for row, goals in
                       zip(model.readout.logits(h).detach().numpy(), targets.tolist(), strict=True)])
    np.testing.assert_allclose(model.readout.log_prob(h, targets).detach().numpy(), wanted, rtol=1e-12)


def test_the_limit_is_that_of_the_positions() -> None:
    assert build().limit() is None
    assert build(position="learned").limit() == 16
    tokens = torch.zeros(1, 17, dtype=torch.int64)
    assert build(position="learned")(tokens[:, :16]).y.shape == (1, 16, V)
    with pytest.raises(InputError, match=r"a position lies outside the table of 16 learned positions, 0 to 15"):
        build(position="learned")(tokens)


@pytest.mark.parametrize(("fields", "message"), [
    ({"position": "rope"}, "position: 'rope' rotates queries and keys, so it has no place outside attention. Put it in "
     "the attention's `position`."),
    ({"position": "learned", "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2,
                                                                    "position": "learned"}]}]},
     "blocks.0.layers.0.position: 'learned' acts on embeddings, not inside attention. Put it in the model's "
     "`position`."),
    ({"position": "sinusoidal", "d_model": 7}, "position: sinusoidal positions come in pairs of features, d_model is "
     "7. Choose an even d_model of at least 2."),
])
def test_two_absolute_schemes_and_other_misplaced_positions(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(**fields)
    assert caught.value.problems == (message,)


@pytest.mark.parametrize("mask", ["bidirectional", "symmetric_window(4, 4)", "causal | global(0)", "~causal",
                                  "documents"])
def test_a_mask_that_lets_tokens_see_later_ones_is_refused_where_it_stands(mask: str) -> None:
    ahead = {"kind": "attention", "n_heads": 2, "mask": mask}
    blocks = [{"kind": "pre", "layers": ["gru"]}, {"repeat": 2, "of": [{"kind": "pre", "layers": ["gru", ahead]}]}]
    with pytest.raises(ConfigError) as caught:
        parse(DecoderConfig, {"vocab_size": 11, "d_model": 8, "blocks": blocks}).build()
    problem, = caught.value.problems
    assert re.match(r"blocks\.1\.of\.0\.layers\.1\.mask: the mask .* lets a token see later ones\. A decoder predicts "
                    r"the next token, which it would then see beforehand\. Give a causal mask, such as "
                    r"'causal', 'causal & window\(64\)' or 'causal \| prefix', or build an encoder\.", problem)


@pytest.mark.parametrize("mask", ["causal", "causal & window(4)", "causal | prefix", "causal & documents"])
def test_causal_and_prefix_masks_are_lawful(mask: str) -> None:
    blocks = [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "mask": mask}]}]
    model = parse(DecoderConfig, {"vocab_size": 11, "d_model": 8, "blocks": blocks}).build()
    tokens = torch.arange(10)[None]
    changed = tokens.clone()
    changed[0, -1] = 0
    assert_close(model(changed).y[:, :-1], model(tokens).y[:, :-1], rtol=0, atol=0)

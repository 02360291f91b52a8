"""Heads against compositions of the oracles, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from by_hand import randomise, require_agreement
from oracles import activations, norms
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.model import Classifier, EncoderInputs, Model, Readout, parse_model
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.heads.masked_token import MaskedTokenHead
from weft.heads.readout import LinearReadout
from weft.tasks.objective import ObjectiveSettings, cross_entropy

V, D, E = 11, 6, 4
BLOCKS = [{"kind": "post", "layers": [{"kind": "attention", "n_heads": 2, "mask": "bidirectional"}, "mlp"]}]
CAUSAL = [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}]}]


def head(config: Any, **dims: Any) -> Any:
    found = parse_part(("head",), config).build(Dims(D, V, **dims)).double().eval()
    randomise(found)
    return found


def vectors(rows: int = 3, steps: int = 5, *, grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(rows, steps, D, generator=generator, dtype=torch.float64, requires_grad=grad)


def model_of(**fields: Any) -> Model:
    found = parse_model({"kind": "encoder", "vocab_size": V, "context": 16, "d_model": D, "position": "learned",
                         "blocks": BLOCKS, **fields}).build().double().eval()
    randomise(found)
    return found


@pytest.mark.parametrize("width", [D, E])
def test_masked_tokens_are_bert_s_transform_norm_and_tied_decoder(width: int) -> None:
    """Of the embedding's width, where that is narrower (ALBERT)."""
    found = head("masked_token", tokens=torch.nn.Embedding(V, width))
    assert [name for name, _ in found.named_parameters()] == [
        "transform.weight", "transform.bias", "norm.weight", "norm.bias", "decoder.weight", "decoder.bias"]

    def bert(h: Any, w: Any, w_bias: Any, scale: Any, shift: Any, table: Any, bias: Any) -> Any:
        x = norms.layernorm(activations.gelu(h @ w.T + w_bias), scale, shift, eps=1e-12)
        return x @ table.T + bias

    h = vectors(grad=True)
    require_agreement(found.logits(h), [h, *found.parameters()], bert)


def test_the_loss_of_masked_tokens_is_the_fused_one_of_the_decoder_behind_the_transform(
        monkeypatch: pytest.MonkeyPatch) -> None:
    found, h = head({"kind": "masked_token", "tied": False}), vectors(grad=True)
    targets = torch.arange(15).view(3, 5) % V
    scored, fused = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)) < 0.5, list[int]()
    before = LinearReadout.cross_entropy
    monkeypatch.setattr(LinearReadout, "cross_entropy", lambda *a, **k: fused.append(1) or before(*a, **k))
    loss = cross_entropy(found, h, targets, scored, ObjectiveSettings()).loss
    wanted = F.cross_entropy(found.logits(h)[scored], targets[scored], reduction="sum")
    assert fused == [1]
    torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=0)
    learned = [h, *found.parameters()]
    for mine, other in zip(torch.autograd.grad(loss, learned), torch.autograd.grad(wanted, learned), strict=True):
        # Sums over the same few dozen terms in another order, in float64.
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def test_the_decoder_of_an_encoder_s_head_is_its_embedding() -> None:
    found: Any = model_of(head="masked_token")
    assert isinstance(found.head, MaskedTokenHead)
    assert found.head.decoder.weight is found.embedding.tokens.weight
    loose: Any = model_of(head={"kind": "masked_token", "tied": False})
    assert loose.head.decoder.weight is not loose.embedding.tokens.weight


def test_each_token_has_scores_of_its_own() -> None:
    found, h = head({"kind": "per_token", "n_classes": 3}), vectors(grad=True)
    assert isinstance(found, Classifier) and (found.pooled, found.values, found.n_outputs) == (False, False, 3)
    require_agreement(found.scores(h, Span()), [h, *found.parameters()], lambda h, w, b: h @ w.T + b)


@pytest.mark.parametrize("transform", [False, True])
@pytest.mark.parametrize("pool", ["first", "last", "mean"])
def test_a_row_is_pooled_over_the_tokens_that_count(pool: str, transform: bool) -> None:
    found = head({"kind": "pooled", "pool": pool, "transform": transform, "labels": ["a", "b", "c"]})
    assert (found.pooled, found.values, found.labels) == (True, False, ("a", "b", "c"))
    counts = [5, 2, 1]
    span, drawn = Span(count=torch.tensor(counts)), vectors(grad=True)
    h = span.resolve(None, drawn).clean(drawn)

    def by_hand(h: Any, *weights: Any) -> Any:
        rows = [{"first": row[0], "last": row[count - 1], "mean": row[:count].mean(0)}[pool]
                for row, count in zip(h, counts, strict=True)]
        x = np.stack(rows)
        if transform:
            x = np.tanh(x @ weights[0].T + weights[1])
        return x @ weights[-2].T + weights[-1]

    require_agreement(found.scores(h, span), [drawn, *found.parameters()], by_hand)
    whole = found.scores(h[:1], Span())
    torch.testing.assert_close(whole, found.scores(h[:1], Span(count=torch.tensor([5]))), rtol=1e-12, atol=1e-13)


TRANSFORM = {"transform": True, "activation": "gelu", "transform_bias": False,
             "norm": {"kind": "layernorm", "bias": False, "eps": 1e-3}}


@pytest.mark.parametrize("kind", ["pooled", "per_token"])
def test_a_transform_may_have_another_activation_a_norm_and_no_bias(kind: str) -> None:
    """ModernBERT's head."""
    found, h = head({"kind": kind, "n_classes": 3, **TRANSFORM}), vectors(grad=True)
    names = [name for name, _ in found.named_parameters()]
    assert names == ["transform.weight", "norm.weight", "map.weight", "map.bias"]

    def by_hand(h: Any, v: Any, scale: Any, w: Any, b: Any) -> Any:
        x = h[:, 0] if kind == "pooled" else h
        return norms.layernorm(activations.gelu(x @ v.T), scale, np.zeros(D), eps=1e-3) @ w.T + b

    require_agreement(found.scores(h, Span()), [h, *found.parameters()], by_hand)


def test_the_map_before_the_decoder_may_lack_its_bias() -> None:
    found = head({"kind": "masked_token", "tied": False, "transform_bias": False})
    assert [name for name, _ in found.named_parameters()][:2] == ["transform.weight", "norm.weight"]


def test_values_stand_in_place_of_classes() -> None:
    found = head({"kind": "pooled", "n_values": 2})
    assert (found.values, found.n_outputs, found.scores(vectors(), Span()).shape) == (True, 2, (3, 2))


@pytest.mark.parametrize("kind", ["per_token", "pooled"])
def test_dropout_is_of_what_the_last_map_reads(kind: str) -> None:
    found, h = head({"kind": kind, "n_classes": 2, "dropout": 0.5}).train(), torch.ones(400, 1, D).double()
    spread = found.scores(h, Span()).flatten(0, -2).unique(dim=0)
    assert len(spread) > 10
    assert len(found.eval().scores(h, Span()).flatten(0, -2).unique(dim=0)) == 1


def test_a_decoder_with_a_head_stays_a_language_model() -> None:
    found: Any = model_of(kind="decoder", blocks=CAUSAL, head={"kind": "pooled", "pool": "last", "n_classes": 2})
    bare: Any = model_of(kind="decoder", blocks=CAUSAL)
    bare.load_state_dict({name: tensor for name, tensor in found.state_dict().items() if not name.startswith("head.")})
    tokens = torch.arange(10).view(2, 5) % V
    assert torch.equal(found(tokens).y, bare(tokens).y)
    h = found.vectors(EncoderInputs(tokens=tokens)).y
    assert torch.equal(h, found.hidden(tokens).y)
    assert found.head.scores(h, Span()).shape == (2, 2) and isinstance(found.readout, Readout)


@pytest.mark.parametrize(("config", "message"), [
    ({"kind": "pooled", "n_classes": 2, "activation": "gelu"},
     r"activation: a field of the transform, and there is none\. Add transform: true, or leave it out"),
    ({"kind": "per_token", "n_classes": 2, "norm": "layernorm"}, r"norm: a field of the transform, and there is none"),
    ({"kind": "pooled", "n_classes": 3, "labels": ["a", "b"]}, r"n_classes: 3 for 2 labels\. Leave it out"),
    ({"kind": "pooled", "labels": ["a", "a"]}, r"labels: 'a' is listed twice"),
    ({"kind": "per_token", "labels": ["a"]}, r"labels: 'a' is the only one\. Name at least two classes"),
    ({"kind": "pooled", "n_classes": 2, "n_values": 1}, r"n_values: 1 values beside 2 classes\. Give one of them"),
    ("pooled", r"head\.n_classes: missing\. Say how many classes there are, name them as labels, or give n_values"),
    ("per_token", r"head\.n_classes: missing\. Say how many classes there are, or name them as labels"),
    ("maskd_token", r"head\.kind: no head of kind 'maskd_token'\. Did you mean 'masked_token'\?"),
    ("linear", r"head\.kind: no head of kind 'linear'\. Known names: masked_token, per_token, pooled\."),
])
def test_a_head_that_says_too_little_or_too_much_is_refused(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_of(head=config)


def test_the_source_side_of_an_encoder_decoder_has_no_head() -> None:
    side = {"kind": "encoder", "vocab_size": V, "d_model": D, "blocks": BLOCKS, "head": "masked_token"}
    with pytest.raises(ConfigError, match=r"encoder\.head: 'masked_token', but the decoder reads the encoder"):
        model_of(kind="encoder_decoder", blocks=CAUSAL, encoder=side)

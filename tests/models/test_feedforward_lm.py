"""Bengio's network against equation 1, and in pieces, rows and documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from oracles.feedforward_lm import feedforward_lm
from oracles.finite_difference import gradient_agrees
from weft.core.config import parse
from weft.core.errors import ConfigError, InputError, StateError
from weft.core.span import Span
from weft.models.feedforward_lm import FeedForwardLM, FeedForwardLMConfig

V, T = 11, 9
EXACT = {"rtol": 1e-12, "atol": 1e-13}
"""float64; sums of at most 28 terms of order one."""
TIED = {"kind": "linear", "tied": True, "bias": True}
SETTINGS = [
    {"order": 4, "d_embedding": 5, "d_hidden": 7},
    {"order": 4, "d_embedding": 5, "d_hidden": 7, "direct": True},
    {"order": 2, "d_embedding": 6, "d_hidden": 6, "readout": TIED},
]


def build(**settings: Any) -> FeedForwardLM:
    """In float64 with every parameter random, biases too."""
    torch.manual_seed(0)
    model = parse(FeedForwardLMConfig, {"vocab_size": V, "context": 16, **settings}).build().double()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.7)
    return model


def draw(batch: int, steps: int = T) -> Tensor:
    return torch.randint(V, (batch, steps), generator=torch.Generator().manual_seed(1))


def weights_of(model: FeedForwardLM) -> list[Tensor]:
    """C, start, H, d, then the readout's matrix where it is not C, and b."""
    readout = model.readout
    own = [model.tokens.weight, model.start_embedding, model.hidden_layer.weight, model.hidden_layer.bias]
    return [*own, *([] if readout.weight is own[0] else [readout.weight]), readout.bias]


def equation_1(model: FeedForwardLM, row: Tensor, *weights: np.ndarray) -> np.ndarray:
    """The oracle on the weights of `weights_of`."""
    c, start, h, d, *rest = weights
    matrix, b = (c, rest[0]) if len(rest) == 1 else rest
    direct = matrix[:, len(d):] if model.direct else None
    return feedforward_lm(row.numpy(), model.config.order, c, start, h, d, matrix[:, :len(d)], b, direct)


@pytest.mark.parametrize("settings", SETTINGS)
def test_logits_are_those_of_equation_1(settings: dict[str, Any]) -> None:
    model, tokens = build(**settings), draw(3)
    logits = model(tokens).y
    weights = [w.detach().numpy() for w in weights_of(model)]
    for row, found in zip(tokens, logits, strict=True):
        assert_close(found, torch.from_numpy(equation_1(model, row, *weights)), **EXACT)


@pytest.mark.parametrize("settings", SETTINGS)
def test_gradients_are_those_of_equation_1(settings: dict[str, Any]) -> None:
    model, row = build(**settings), draw(1)[0]
    rng = np.random.default_rng(0)
    cotangent = rng.standard_normal((T, V))
    leaves = weights_of(model)
    gradients = torch.autograd.grad((model(row[None]).y[0] * torch.from_numpy(cotangent)).sum(), leaves)
    assert gradient_agrees(lambda *w: equation_1(model, row, *w), [w.detach().numpy() for w in leaves],
                           [g.numpy() for g in gradients], rng, cotangent=cotangent)


def test_hidden_layer_is_a_convolution() -> None:
    """The same windows by torch's own means: a Conv1d over the embeddings, the start embedding before them."""
    model, tokens = build(order=4, d_embedding=5, d_hidden=7), draw(2)
    row = torch.cat([model.start_embedding.expand(2, 3, -1), model.tokens(tokens)], 1)[:, 1:].transpose(1, 2)
    kernel = model.hidden_layer.weight.view(7, 3, 5).transpose(1, 2)
    expected = torch.tanh(F.conv1d(row, kernel, model.hidden_layer.bias)).transpose(1, 2)
    assert_close(model.hidden(tokens).y, expected, **EXACT)


@pytest.mark.parametrize("settings", SETTINGS)
def test_log_prob_is_that_of_the_logits(settings: dict[str, Any]) -> None:
    model, tokens = build(**settings), draw(3)
    h = model.hidden(tokens[:, :-1]).y
    expected = model.readout.logits(h).log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    assert_close(model.readout.log_prob(h, tokens[:, 1:]), expected, **EXACT)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("cuts", [[1] * T, [2, 0, 5, 2]])
def test_pieces_equal_the_whole_in_values_and_gradients(settings: dict[str, Any], cuts: list[int]) -> None:
    model, tokens = build(**settings), draw(2)
    state, outs = model.init_state(2), []
    for piece in tokens.split(cuts, dim=1):
        y, state, *_ = model(piece, state)
        outs.append(y)
    whole, parts = model(tokens).y, torch.cat(outs, 1)
    assert_close(parts, whole, **EXACT)
    leaves = list(model.parameters())
    for a, b in zip(torch.autograd.grad(parts.square().sum(), leaves),
                    torch.autograd.grad(whole.square().sum(), leaves), strict=True):
        assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_embeddings_and_hidden_units_are_dropped_only_in_training() -> None:
    sizes = {"order": 3, "d_embedding": 50, "d_hidden": 60, "direct": True}
    plain, model, tokens = build(**sizes), build(**sizes, dropout=0.5), draw(2)
    assert_close(model.eval().hidden(tokens).y, plain.hidden(tokens).y, **EXACT)
    units, known = model.train().hidden(tokens).y.split([60, 100], dim=-1)
    for dropped in (units, known):  # about half of at least 1,000 numbers
        assert 0.4 < (dropped == 0).double().mean() < 0.6
    whole = plain.hidden(tokens).y[..., 60:]
    assert_close(known[known != 0], 2 * whole[known != 0], **EXACT)


def test_rows_that_advance_by_counts_hold_their_last_tokens() -> None:
    model, tokens = build(order=4), draw(3)
    first = model.hidden(tokens[:, :5], model.init_state(3), Span(count=torch.tensor([5, 2, 0]))).state
    start = V
    expected = torch.stack([tokens[0, 2:5], torch.tensor([start, *tokens[1, :2]]), torch.full((3,), start)])
    assert torch.equal(first.tokens, expected)
    # What pads a row may be no id at all.
    padded = tokens[:, :5].clone()
    padded[1, 2:], padded[2] = -1, V + 7
    out = model.hidden(padded, model.init_state(3), Span(count=torch.tensor([5, 2, 0])))
    assert torch.equal(out.state.tokens, expected)
    assert torch.equal(out.y[2], torch.zeros_like(out.y[2]))


def test_documents_in_a_row_do_not_see_each_other() -> None:
    model, tokens = build(order=4, direct=True), draw(1)
    begins = torch.zeros(1, T, dtype=torch.bool)
    begins[0, [4, 6]] = True
    apart = torch.cat([model(part).y for part in tokens.split([4, 2, 3], dim=1)], 1)
    assert_close(model(tokens, span=Span(begins=begins)).y, apart, **EXACT)
    # Cut inside a document, the fence is in the state.
    one = model(tokens[:, :5], model.init_state(1), Span(begins=begins[:, :5]))
    assert one.state.tokens.tolist() == [[V, V, tokens[0, 4]]]
    two = model(tokens[:, 5:], one.state, Span(begins=begins[:, 5:]))
    assert_close(torch.cat([one.y, two.y], 1), apart, **EXACT)


def test_training_and_a_step_compile_whole() -> None:
    model, tokens = build(**SETTINGS[1]), draw(2)
    compiled = torch.compile(lambda x, s: model(x, s), fullgraph=True, backend="eager")
    leaves = list(model.parameters())
    found, expected = compiled(tokens, None).y, model(tokens).y
    assert_close(found, expected, **EXACT)
    for a, b in zip(torch.autograd.grad(found.square().sum(), leaves),
                    torch.autograd.grad(expected.square().sum(), leaves), strict=True):
        assert_close(a, b, rtol=1e-11, atol=1e-12)
    with torch.no_grad():
        state = model(tokens[:, :4], model.init_state(2)).state
        step = compiled(tokens[:, 4:5], state)
    assert_close(step.y, expected[:, 4:5].detach(), **EXACT)
    assert torch.equal(step.state.tokens, tokens[:, 5 - model.reach:5])


def test_the_state_is_bounded_and_holds_ids() -> None:
    model, tokens = build(order=4), draw(2)
    state = model(tokens, model.init_state(2)).state.to(dtype=torch.bfloat16)
    assert torch.equal(state.tokens, tokens[:, -3:])
    # Four int64 of the clock and three ids, two rows.
    assert state.nbytes() == 2 * 8 * (4 + 3)


def test_a_state_of_another_model_is_refused() -> None:
    model, other = build(order=4), build(order=3)
    with pytest.raises(StateError, match="state: the state belongs to another model"):
        model(draw(1), other.init_state(1))


@pytest.mark.parametrize("wrong", [V, -1])
def test_ids_outside_the_vocabulary_are_refused(wrong: int) -> None:
    with pytest.raises(InputError, match=rf"tokens: an id outside the vocabulary, 0 .. {V - 1}. Encode the text with"):
        build(order=3)(torch.tensor([[0, wrong]]))


def test_tying_needs_one_width() -> None:
    with pytest.raises(ConfigError, match=r"readout\.tied: there is no token embedding of width 7 to share"):
        build(order=3, d_embedding=5, d_hidden=7, readout=TIED)
    with pytest.raises(ConfigError, match="no token embedding of width 24 to share"):
        build(order=3, d_embedding=8, d_hidden=8, direct=True, readout={"kind": "linear"})


def test_a_context_of_no_token_is_an_error() -> None:
    with pytest.raises(ConfigError, match="order: Input should be greater than 1, got 1"):
        parse(FeedForwardLMConfig, {"vocab_size": V, "order": 1})


def test_it_learns_a_rule_that_needs_two_tokens() -> None:
    """Fibonacci's numbers modulo 5: in their period of 20 every number is followed by four others, equally often, so
    one token of context leaves log 4 = 1.39 nats, and two leave none."""
    torch.manual_seed(0)
    model = parse(FeedForwardLMConfig, {"vocab_size": 5, "order": 3, "d_embedding": 8, "d_hidden": 32}).build()
    row = [1, 2]
    for _ in range(40):
        row.append((row[-1] + row[-2]) % 5)
    tokens = torch.tensor([row])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        loss = -model.readout.log_prob(model.hidden(tokens[:, :-1]).y, tokens[:, 1:])[:, 1:].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_dropout_falls_on_the_embeddings_and_on_the_hidden_units() -> None:
    torch.manual_seed(0)
    config = FeedForwardLMConfig(vocab_size=11, order=3, d_embedding=20, d_hidden=40, direct=True, dropout=0.5, std=1.0)
    model = config.build().train()
    h = model.hidden(torch.randint(11, (4, 16))).y
    hidden, embeddings = h.split([40, 40], dim=-1)
    for part in (hidden, embeddings):
        # 2,560 independent draws: the share of zeros has a standard deviation of 0.01.
        assert abs(float((part == 0).float().mean()) - 0.5) < 0.05
    assert not (model.eval().hidden(torch.randint(11, (4, 16))).y == 0).any()

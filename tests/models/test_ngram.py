"""The n-gram as a language model: against textbook formulas, in pieces, rows and documents, saved and loaded."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from oracles.ngrams import START, NaiveNgrams
from weft.checkpoints import load_checkpoint, save_checkpoint
from weft.core.config import parse
from weft.core.errors import CheckpointError, ConfigError, InputError, StateError
from weft.core.model import Counted, Resizable
from weft.core.span import Span
from weft.models.ngram import NgramConfig, NgramModel

V = 7
UNIFORM = torch.full((V,), -math.log(V), dtype=torch.float64)
EXACT = {"rtol": 1e-12, "atol": 1e-13}
"""Logarithms of quotients of small integers in float64."""
SMOOTHINGS = [{"smoothing": "maximum_likelihood"}, {"smoothing": "add_k"}, {"smoothing": "add_k", "k": 0.25},
              {"smoothing": "katz"}, {"smoothing": "kneser_ney"}]


def build(**settings: Any) -> NgramModel:
    return parse(NgramConfig, {"vocab_size": V, **settings}).build()


def corpus(size: int = 300) -> tuple[Tensor, Tensor]:
    """Skewed ids in documents of about ten tokens; the last id is never seen."""
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.zipf(1.5, size=size) % (V - 1)), torch.from_numpy(rng.random(size) < 0.1)


def fitted(**settings: Any) -> NgramModel:
    model = build(**settings)
    model.fit(*corpus())
    return model


def documents(tokens: Tensor, begins: Tensor) -> list[list[int]]:
    cuts = [0, *[n for n in begins.nonzero().flatten().tolist() if n], len(tokens)]
    return [tokens[a:b].tolist() for a, b in pairwise(cuts)]


def draw(batch: int, steps: int) -> Tensor:
    return torch.randint(V, (batch, steps), generator=torch.Generator().manual_seed(3))


def textbook(settings: dict[str, Any], row: list[int], order: int) -> Tensor:
    """[T,V]: log p(w | document so far) from the naive formulas."""
    naive = NaiveNgrams(documents(*corpus()), order, range(V))
    options = {"k": settings.get("k", 1.0)} if settings["smoothing"] == "add_k" else {}
    estimate = getattr(naive, settings["smoothing"])
    return torch.tensor([[estimate(w, (START, *row[:t + 1]), **options) for w in range(V)]
                         for t in range(len(row))], dtype=torch.float64).log()


@pytest.mark.parametrize("settings", SMOOTHINGS)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_logits_are_the_textbooks_log_probabilities(settings: dict[str, Any], order: int) -> None:
    model = fitted(order=order, **settings)
    tokens = draw(2, 8)
    logits = model(tokens).y
    for row, found in zip(tokens.tolist(), logits, strict=True):
        assert_close(found, textbook(settings, row, order), **EXACT)
    assert_close(logits.exp().sum(-1), torch.ones(2, 8, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("settings", SMOOTHINGS)
def test_log_prob_is_that_of_the_logits(settings: dict[str, Any]) -> None:
    model, tokens = fitted(order=3, **settings), draw(3, 9)
    h = model.hidden(tokens[:, :-1]).y
    expected = model.readout.logits(h).gather(-1, tokens[:, 1:, None])[..., 0]
    found = model.readout.log_prob(h, tokens[:, 1:])
    assert_close(found, expected, **EXACT)
    assert bool(found.isinf().any()) == (settings["smoothing"] == "maximum_likelihood")


def test_the_lectures_dice() -> None:
    """p(. | cows, eat) from counts 4, 3, 2, 1, 1; what was never seen there is honestly impossible."""
    model = build(vocab_size=8, order=3, smoothing="maximum_likelihood")
    cows, eat = 0, 1
    foods = [2] * 4 + [3] * 3 + [4] * 2 + [5] + [6]
    tokens = torch.tensor([word for food in foods for word in (cows, eat, food)])
    model.fit(tokens, tokens == cows)
    p = model(torch.tensor([[cows, eat]])).y[0, 1].exp()
    assert_close(p, torch.tensor([0, 0, 4, 3, 2, 1, 1, 0], dtype=torch.float64) / 11, **EXACT)
    impossible = model.readout.log_prob(model.hidden(torch.tensor([[cows, eat]])).y, torch.tensor([[eat, 7]]))
    assert impossible.tolist() == [[0.0, -math.inf]]


def test_without_counts_every_token_is_equally_likely() -> None:
    for order in (1, 2, 4):
        assert_close(build(order=order)(draw(2, 5)).y, UNIFORM.expand(2, 5, -1), **EXACT)


def test_fit_replaces_what_was_counted() -> None:
    tokens, begins = corpus()
    model = build(order=3)
    model.fit(tokens[:40], begins[:40])
    model.fit(tokens, begins)
    assert torch.equal(model(draw(2, 6)).y, fitted(order=3)(draw(2, 6)).y)


def test_fit_without_begins_is_one_document() -> None:
    tokens, _ = corpus()
    model, marked = build(order=3), build(order=3)
    model.fit(tokens)
    marked.fit(tokens, torch.arange(len(tokens)) == 0)
    assert torch.equal(model(draw(2, 6)).y, marked(draw(2, 6)).y)


@pytest.mark.parametrize("order", [1, 4])
@pytest.mark.parametrize("cuts", [[1] * 9, [2, 0, 5, 2]])
def test_pieces_equal_the_whole(order: int, cuts: list[int]) -> None:
    model, tokens = fitted(order=order), draw(2, 9)
    state, outs = model.init_state(2), []
    for piece in tokens.split(cuts, dim=1):
        y, state, *_ = model(piece, state)
        outs.append(y)
    assert torch.equal(torch.cat(outs, 1), model(tokens).y)
    # Bounded: four int64 of the clock and order - 1 ids a row.
    assert state.nbytes() == 2 * 8 * (4 + order - 1)


def test_hidden_is_the_context_ids() -> None:
    model = fitted(order=3)
    begins = torch.tensor([[False, False, True, False], [False] * 4])
    h = model.hidden(torch.tensor([[1, 2, 3, 4], [5, 0, 1, 2]]), None, Span(begins=begins)).y
    assert h.tolist() == [[[V, 1], [1, 2], [V, 3], [3, 4]], [[V, 5], [5, 0], [0, 1], [1, 2]]]


def test_rows_advance_by_counts() -> None:
    model, tokens = fitted(order=3), draw(3, 6)
    counts = torch.tensor([6, 1, 0])
    out = model.hidden(tokens, model.init_state(3), Span(count=counts))
    assert out.state.tokens.tolist() == [tokens[0, 4:].tolist(), [V, tokens[1, 0]], [V, V]]
    for row, count in enumerate(counts.tolist()):
        alone = model.hidden(tokens[row:row + 1, :count]).y[0]
        assert torch.equal(out.y[row, :count], alone)
    late = draw(3, 2)
    expected = [model(torch.cat([tokens[b, :n], late[b]])[None]).y[0, n:] for b, n in enumerate(counts.tolist())]
    assert torch.equal(model(late, out.state).y, torch.stack(expected))


def test_documents_in_a_row_do_not_see_each_other() -> None:
    model, tokens = fitted(order=3, smoothing="katz"), draw(1, 8)
    begins = torch.zeros(1, 8, dtype=torch.bool)
    begins[0, [3, 5]] = True
    apart = torch.cat([model(part).y for part in tokens.split([3, 2, 3], dim=1)], 1)
    assert torch.equal(model(tokens, span=Span(begins=begins)).y, apart)
    one = model(tokens[:, :4], model.init_state(1), Span(begins=begins[:, :4]))
    two = model(tokens[:, 4:], one.state, Span(begins=begins[:, 4:]))
    assert torch.equal(torch.cat([one.y, two.y], 1), apart)


def test_states_are_selected_like_any_other() -> None:
    model, tokens = fitted(order=3), draw(3, 6)
    state = model(tokens[:, :4], model.init_state(3)).state
    whole = model(tokens).y[:, 4:]
    assert torch.equal(model(tokens[[2, 0, 0], 4:], state.select([2, 0, 0])).y, whole[[2, 0, 0]])


class TestEnd:
    """With an end token E, ``E d1 E d2 E`` says what ``d1 E``, ``d2 E`` say."""

    E = V - 1
    LISTED = torch.tensor([E, 1, 2, E, 3, E, E])
    BEGINS = torch.tensor([True, False, False, True, False, True, True])

    def test_each_end_is_counted_once_and_in_its_own_document(self) -> None:
        for smoothing in ("maximum_likelihood", "kneser_ney"):
            model = build(order=3, end=self.E, smoothing=smoothing)
            plain = build(order=3, smoothing=smoothing)
            model.fit(self.LISTED, self.BEGINS)
            # The last document is empty: it ends at once.
            plain.fit(torch.tensor([1, 2, self.E, 3, self.E, self.E]), torch.tensor([1, 0, 0, 1, 0, 1]).bool())
            for name, buffer in plain.state_dict().items():
                assert torch.equal(model.state_dict()[name], buffer), name

    def test_the_opening_end_token_is_the_start_symbol(self) -> None:
        model = build(order=3, end=self.E, smoothing="maximum_likelihood")
        model.fit(self.LISTED, self.BEGINS)
        tokens, span = self.LISTED[None], Span(begins=self.BEGINS[None])
        h = model.hidden(tokens, None, span).y
        assert h[0].tolist() == [[V, V], [V, 1], [1, 2], [V, V], [V, 3], [V, V], [V, V]]
        # After the start symbol: one document each begins with 1, with 3, and with its end.
        assert_close(model.readout.logits(h)[0, 0].exp()[[1, 3, self.E]],
                     torch.full((3,), 1 / 3, dtype=torch.float64), **EXACT)
        assert_close(model.readout.log_prob(h[:, :-1], tokens[:, 1:]).exp(),
                     torch.tensor([[1 / 3, 1, 1, 1 / 3, 1, 1 / 3]], dtype=torch.float64), **EXACT)

    def test_inside_a_document_it_is_a_token(self) -> None:
        model = build(order=3, end=self.E)
        assert model.hidden(torch.tensor([[1, self.E]])).y.tolist() == [[[V, 1], [1, self.E]]]

    def test_it_must_be_in_the_vocabulary(self) -> None:
        with pytest.raises(ConfigError, match=rf"end: {V} is no id of a vocabulary of {V}\. Give one from 0"):
            build(end=V)


class TestStorage:
    def test_a_fitted_table_loads_into_an_unfitted_model(self) -> None:
        source, target = fitted(order=3), build(order=3)
        target.load_state_dict(source.state_dict())
        assert torch.equal(target(draw(2, 6)).y, source(draw(2, 6)).y)

    def test_a_model_inside_another_module_loads_too(self) -> None:
        source, target = torch.nn.ModuleList([fitted(order=3)]), torch.nn.ModuleList([build(order=3)])
        target.load_state_dict(source.state_dict())
        assert torch.equal(target[0](draw(2, 6)).y, source[0](draw(2, 6)).y)

    @pytest.mark.parametrize("settings", SMOOTHINGS)
    def test_a_checkpoint_holds_the_table(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        model = fitted(order=3, **settings)
        save_checkpoint(tmp_path / "ngram", model, None)
        loaded = load_checkpoint(tmp_path / "ngram").model
        assert loaded.config == model.config
        assert torch.equal(loaded(draw(2, 6)).y, model(draw(2, 6)).y)

    def test_a_table_of_another_vocabulary_is_refused(self) -> None:
        target = parse(NgramConfig, {"vocab_size": V + 1, "order": 2}).build()
        with pytest.raises(CheckpointError, match=r"log_prob_1: shape \[8\] where \[9\] belongs\. The checkpoint is"):
            target.load_state_dict(fitted(order=2).state_dict())

    def test_sizes_that_do_not_fit_together_are_refused(self) -> None:
        model = fitted(order=2)
        keys = len(model.readout.get_buffer("keys_2"))
        damaged = {**model.state_dict(), "readout.log_prob_2": torch.zeros(3, dtype=torch.float64)}
        with pytest.raises(CheckpointError, match=rf"log_prob_2: shape \[3\] where \[{keys}\] belongs"):
            build(order=2).load_state_dict(damaged)

    def test_a_missing_tensor_is_reported_by_the_loader(self) -> None:
        damaged = fitted(order=2).state_dict()
        del damaged["readout.keys_2"]
        with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"readout.keys_2\""):
            build(order=2).load_state_dict(damaged)

    def test_a_copy_has_tables_of_its_own(self) -> None:
        model = fitted(order=3)
        before, twin = model(draw(2, 6)).y, copy.deepcopy(model)
        twin.fit(torch.zeros(5, dtype=torch.int64))
        twin.load_state_dict(build(order=3).state_dict())
        assert torch.equal(model(draw(2, 6)).y, before)
        assert_close(twin(draw(2, 6)).y, UNIFORM.expand(2, 6, -1), **EXACT)

    def test_casting_the_model_leaves_the_table_alone(self) -> None:
        model = fitted(order=3)
        before = model(draw(2, 6)).y
        assert torch.equal(model.to(torch.bfloat16)(draw(2, 6)).y, before)


def test_it_is_what_training_and_checkpoints_look_for() -> None:
    model = build()
    assert isinstance(model, Counted) and isinstance(model, Resizable)


def test_k_belongs_to_add_k() -> None:
    with pytest.raises(ConfigError, match=r"k: 0\.5 with smoothing 'katz', which adds nothing.*Leave it out"):
        build(smoothing="katz", k=0.5)
    with pytest.raises(ConfigError, match="k: Input should be greater than 0, got 0"):
        build(smoothing="add_k", k=0)


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(InputError, match="tokens: there are no tokens to count"):
        build().fit(torch.zeros(0, dtype=torch.int64))
    with pytest.raises(InputError, match="there are no tokens to count"):
        build(end=2).fit(torch.tensor([2]))
    with pytest.raises(InputError, match=rf"tokens\[1\]: ids must lie in 0 .. {V - 1}; got {V}"):
        build().fit(torch.tensor([0, V]))
    with pytest.raises(InputError, match="begins: begins must be 3 booleans, one per token; got bool of shape"):
        build().fit(torch.tensor([0, 1, 2]), torch.tensor([True]))


@pytest.mark.parametrize("wrong", [V, -1])
def test_ids_outside_the_vocabulary_are_refused(wrong: int) -> None:
    model = fitted(order=2)
    with pytest.raises(InputError, match=rf"tokens: an id outside the vocabulary, 0 .. {V - 1}. Encode the text with"):
        model(torch.tensor([[0, wrong]]))
    with pytest.raises(InputError, match=rf"targets: ids must be integers in 0 .. {V - 1}; got int64 from"):
        model.readout.log_prob(model.hidden(torch.tensor([[0, 1]])).y, torch.tensor([[0, wrong]]))


def test_a_state_of_another_model_is_refused() -> None:
    with pytest.raises(StateError, match="state: the state belongs to another model"):
        build(order=3)(draw(1, 2), build(order=4).init_state(1))

"""Likelihoods of completions against a call of the model for every single target."""

from __future__ import annotations

import math

import pytest
import torch

from decoding.small_models import VOCAB, Bigram, decoder, kinds, reseeded, translator
from weft.core.errors import FailedError, InputError, UnsupportedError
from weft.core.model import LanguageModel
from weft.core.span import Span
from weft.evaluation.completions import Completion, Likelihood, likelihoods

KINDS = {name: model for name, model in kinds().items() if name in {
    "rope", "longrope", "dynamic", "learned", "lstm", "s4d", "ngram-4", "feedforward-0"}}
WINDOW = 9


def drawn() -> list[Completion]:
    """Contexts and targets of many lengths, some longer together than the window; the last three read the same."""
    generator = reseeded(3)
    sizes = [(1, 1), (2, 3), (5, 4), (6, 4), (7, 9), (20, 2), (1, 9), (3, 1)]
    rows = [torch.randint(VOCAB, (sum(size),), generator=generator).tolist() for size in sizes]
    found = [Completion(tuple(row[:size[0]]), tuple(row[size[0]:])) for row, size in zip(rows, sizes, strict=True)]
    return [*found, *(Completion(found[-1].context, (token,)) for token in (0, 4))]


@torch.no_grad()
def reference(model: LanguageModel, each: Completion) -> Likelihood:
    """One call for each target, of all the tokens before it that the window leaves."""
    ids, total, greedy = [*each.context, *each.targets][-WINDOW - 1:], 0.0, True
    length = len(ids) - 1
    for place in range(len(ids) - len(each.targets), len(ids)):
        span = Span(horizon=torch.tensor([length]))
        log_probs = model(torch.tensor([ids[:place]]), None, span).y[0, -1].log_softmax(-1)
        total, greedy = total + float(log_probs[ids[place]]), greedy and int(log_probs.argmax()) == ids[place]
    return Likelihood(total, greedy, len(each.targets), max(0, len(each.context) + len(each.targets) - WINDOW - 1))


@pytest.mark.parametrize("name", sorted(KINDS))
def test_each_is_the_sum_over_its_targets_of_what_the_tokens_before_predict(name: str) -> None:
    model, asked = KINDS[name].eval(), drawn()
    wanted = [reference(model, each) for each in asked]
    for size in (1, 32):
        found = likelihoods(model, asked, window=WINDOW, batch_size=size)
        assert [each.log_prob for each in found] == pytest.approx([each.log_prob for each in wanted], rel=1e-9)
        assert [(each.greedy, each.tokens, each.cut) for each in found] == [
            (each.greedy, each.tokens, each.cut) for each in wanted]
    assert {each.cut for each in found} == {0, 6, 12}


def test_progress_begins_with_none_and_ends_with_all_of_them() -> None:
    told: list[tuple[int, int]] = []
    likelihoods(KINDS["lstm"], drawn(), window=WINDOW, batch_size=4, progress=lambda *now: told.append(now))
    assert told[0] == (0, 10) and told[-1] == (10, 10) and len(told) == 3


def test_completions_that_read_the_same_are_one_row() -> None:
    model = Bigram([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
    found = likelihoods(model, [Completion((0, 1), (token,)) for token in range(3)], window=4)
    assert model.calls == [1]
    assert [each.log_prob for each in found] == pytest.approx([-math.inf, math.log(0.5), math.log(0.5)])
    assert [each.greedy for each in found] == [False, True, False]  # of equally probable ones the lowest id
    whole, = likelihoods(model, [Completion((0,), (0, 1, 2, 0))], window=4)
    assert whole.log_prob == pytest.approx(math.log(0.5 * 0.25 * 0.5)) and not whole.greedy


def test_long_targets_are_greedy_only_if_every_one_is() -> None:
    """More targets than the logits of one look; the one that is not most probable is the last."""
    model = Bigram([[0.75, 0.25], [1.0, 0.0]])
    found = likelihoods(model, [Completion((0,), (0,) * 99), Completion((0,), (*(0,) * 98, 1))], window=100)
    assert [each.greedy for each in found] == [True, False]


def test_what_cannot_be_asked() -> None:
    model, one = KINDS["rope"], Completion((1,), (2,))
    for error, message, action in (
        (InputError, r"completions\[1\]: no context\. Give at least one id before the targets",
         lambda: likelihoods(model, [one, Completion((), (1,))], window=4)),
        (InputError, r"completions\[0\]: no targets\.", lambda: likelihoods(model, [Completion((1,), ())], window=4)),
        (InputError, r"completions\[0\]: 5 targets, and a row has 4 tokens\. Give a larger context",
         lambda: likelihoods(model, [Completion((1,), (2,) * 5)], window=4)),
        (InputError, r"completions\[0\]: id 11 is outside the vocabulary",
         lambda: likelihoods(model, [Completion((1,), (2, 11))], window=4)),
        (InputError, r"batch_size: 0 rows\. Give 1", lambda: likelihoods(model, [one], window=4, batch_size=0)),
        (InputError, r"context: rows of 12 tokens, and this model has positions for 8 tokens\. Give a smaller context",
         lambda: likelihoods(decoder("lstm", position={"kind": "learned", "max_length": 8}),
                             [Completion((1,) * 12, (2,))], window=20)),
        (UnsupportedError, r"decodes from a source, and a prompt is none\. Give a decoder",
         lambda: likelihoods(translator(VOCAB), [one], window=4)),
        (FailedError, r"completions\[0\]: the model gives NaN\. Check the checkpoint",
         lambda: likelihoods(Bigram([[math.nan] * 2] * 2), [Completion((1,), (0,))], window=4)),
    ):
        with pytest.raises(error, match=message):
            action()

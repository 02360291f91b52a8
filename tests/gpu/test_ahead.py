"""Tokens that are read while the next step runs, against tokens that are read before it: without a card the steps are
the same ones, in the same order."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from decoding.small_models import decoder
from decoding.test_decoding_tape import made
from weft.core.errors import FailedError
from weft.decoding import Ending, RowSettings, Sampling, Slots, generate
from weft.decoding.session import Session

GENERATE = sys.modules["weft.decoding.generate"]
"""The module, whose name in the package is the function's."""
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [2, 2], [7], [8, 1]]


class Ahead(Session):
    """A session that runs ahead on a processor, too, and counts."""

    steps = begun = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ahead = options["ahead"] and not self._by_length

    def run_ahead(self, tokens: Tensor) -> None:
        super().run_ahead(tokens)
        Ahead.begun += self._started_ahead

    def _step(self, *args: Any) -> None:
        Ahead.steps += 1
        super()._step(*args)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    Ahead.steps = Ahead.begun = 0
    monkeypatch.setattr(GENERATE, "Slots", partial(Slots, session=Ahead))


SAMPLINGS = {"greedy": Sampling(0.0), "drawn": Sampling(1.3), "top k and p": Sampling(0.9, top_k=5, top_p=0.8)}


@pytest.mark.parametrize("size", [None, 1, 2])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("name", ["rope", "hybrid", "lstm", "s4d", "moe", "ngram-0"])
def test_text_is_that_of_steps_one_after_the_other(name: str, sampling: Sampling, size: int | None,
                                                   ahead: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def text() -> Any:
        return generate(made(name), PROMPTS, max_new_tokens=12, sampling=sampling, ending=Ending(tokens=(3, 5)),
                        batch_size=size, seed=2)

    found = text()
    assert Ahead.begun > 0
    monkeypatch.setattr(GENERATE, "Slots", Slots)
    assert text() == found


def test_rows_that_end_by_length_are_run_no_step_too_far(ahead: None) -> None:
    generate(made("rope"), [[1, 2], [3, 4]], max_new_tokens=9, sampling=Sampling(0.0))
    assert Ahead.steps == 8 and Ahead.begun == 8


@pytest.mark.parametrize("sampling", [Sampling(0.0, repetition_penalty=1.5), Sampling(0.5, frequency_penalty=0.3),
                                      Sampling(0.0, bias=((2, 1.0),))], ids=["repetition", "frequency", "bias"])
def test_a_choice_that_needs_more_than_logits_waits(sampling: Sampling, ahead: None) -> None:
    assert generate(made("rope"), PROMPTS, max_new_tokens=5, sampling=sampling).rows
    assert Ahead.begun == 0 and Ahead.steps > 0


def test_log_probabilities_are_told_without_running_ahead(ahead: None) -> None:
    rows = generate(made("rope"), PROMPTS, max_new_tokens=5, log_probs=True).rows
    assert Ahead.begun == 0 and all(row.log_probs is not None for row in rows)


def test_a_session_whose_states_are_asked_for_does_not_run_ahead() -> None:
    Ahead.begun = 0
    slots = Slots(made("rope"), 1, capacity=20, session=Ahead)
    slot = slots.admit([1, 2, 3], RowSettings(max_new_tokens=6, sampling=Sampling(0.0)))
    slots.step()
    left = slots.leave(slot)
    assert Ahead.begun == 0 and left is not None and left.tokens == (1, 2, 3)


def test_the_error_of_a_row_is_the_same(ahead: None) -> None:
    model = decoder("lstm").eval()
    with torch.no_grad():
        model.readout.weight[0] = torch.nan
    with pytest.raises(FailedError, match=r"rows\[0\].*logit of nan"):
        generate(model, PROMPTS, max_new_tokens=5)

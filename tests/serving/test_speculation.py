"""Guesses change how often a model is run, and nothing of a row's text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from decoding.small_models import DYNAMIC, MLP, ROPE, VOCAB, Bigram, decoder, reseeded
from weft.core.errors import InputError
from weft.core.model import LanguageModel
from weft.decoding import Ending, NewToken, Row, RowSettings, Sampling
from weft.serving.engine import Engine
from weft.serving.requests import EngineLimits, Event, Failed, Request
from weft.serving.speculation import DraftingSession, Drafts, ModelDrafts, PromptDrafts

WINDOW = {**ROPE, "mask": "causal & window(4)", "n_kv_heads": 1}
MODELS: dict[str, tuple[Any, ...]] = {
    "attention": (ROPE, MLP), "window": (WINDOW, MLP), "lstm": ("lstm",), "s4d": ("s4d", MLP),
    "hybrid": (ROPE, WINDOW, "lstm", MLP), "rwkv": ("rwkv4", "channel_mix")}
SETTINGS = (RowSettings(15, row=0, log_probs=True), RowSettings(13, Sampling(0.6), row=1, log_probs=True),
            RowSettings(15, Sampling(1.3, top_k=6), Ending((7,)), row=2, log_probs=True),
            RowSettings(12, Sampling(0.9, repetition_penalty=1.3, presence_penalty=0.4), row=3, log_probs=True),
            RowSettings(1, row=4, log_probs=True), RowSettings(12, Sampling(0, frequency_penalty=0.2), row=5,
                                                               log_probs=True, constraint=lambda: Even()))


class Even:
    """A constraint to even ids."""

    def allowed(self) -> torch.Tensor:
        return torch.arange(VOCAB) % 2 == 0

    def push(self, token: int) -> bool:
        assert token % 2 == 0
        return False


class Fixed(Drafts):
    """Guesses of random tokens, some of which are right by chance."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._generator = reseeded(6)

    def draft(self, tokens: Sequence[int]) -> list[int]:
        return torch.randint(VOCAB, (int(torch.randint(self.most + 1, (1,), generator=self._generator)),),
                             generator=self._generator).tolist()


def drafting(kind: str, model: LanguageModel) -> Callable[[], Drafts] | None:
    small, bigram = decoder("gru").eval(), bigrams(2)
    makers: dict[str, Callable[[], Drafts]] = {
        "prompt": lambda: PromptDrafts(4), "random": lambda: Fixed(3), "itself": lambda: ModelDrafts(model, 5),
        "recurrent": lambda: ModelDrafts(small, 3), "bigram": lambda: ModelDrafts(bigram, 3)}
    return makers.get(kind)


def bigrams(seed: int) -> Bigram:
    return Bigram((torch.rand(VOCAB, VOCAB, generator=reseeded(seed)) + 0.05).tolist()).eval()


def served(engine: Engine, rows: list[Row], settings: Sequence[RowSettings], *,
           together: bool = False) -> list[list[NewToken]]:
    """The tokens of rows that arrive one by one or together: where rows arrive, a step reads no guesses."""
    heard: list[list[Event]] = [[] for _ in rows]
    for row, own, events in zip(rows, settings, heard, strict=True):
        engine.submit(Request(row, own), events.append)
        if not together:
            engine.step()
    while engine.step():
        pass
    assert not any(isinstance(events[-1], Failed) for events in heard), heard
    figures = engine.figures()
    assert (figures.running, figures.state_bytes) == (0, 0) and figures.accepted <= figures.drafted
    return [[event for event in events if isinstance(event, NewToken)] for events in heard]


def check_same(found: list[list[NewToken]], wanted: list[list[NewToken]]) -> None:
    for own, other in zip(found, wanted, strict=True):
        assert [(new.token, new.finish) for new in own] == [(new.token, new.finish) for new in other]
        # float64, in calls on other numbers of tokens
        assert [new.log_prob for new in own] == pytest.approx([new.log_prob for new in other], abs=1e-9)


@pytest.mark.parametrize(("name", "kind"), [
    *[(name, "prompt") for name in MODELS], ("attention", "random"), ("hybrid", "random"), ("rwkv", "itself"),
    ("attention", "recurrent"), ("s4d", "recurrent")])
def test_the_tokens_of_a_row_are_those_without_guesses(name: str, kind: str) -> None:
    """Greedy and drawn, with penalties, stops and a constraint; then again from the states that were kept."""
    model = decoder(*MODELS[name]).eval()
    limits = EngineLimits(rows=4, prefix_bytes=1 << 22, prefix_tokens=4)
    plain = Engine(model, None, limits=limits)
    engine = Engine(model, None, limits=limits, drafting=drafting(kind, model))
    rows = [Row(tuple((3 * place + row) % 5 for place in range(3 + 4 * row))) for row in range(len(SETTINGS))]
    for _ in range(2):
        wanted = served(plain, rows, SETTINGS)
        check_same(served(engine, rows, SETTINGS), wanted)
        rows = [Row((*row.tokens, *(new.token for new in text))) for row, text in zip(rows, wanted, strict=True)]
    figures = engine.figures()
    assert figures.cached_tokens > 0 and figures.drafted > 0 and plain.figures().drafted == 0


@pytest.mark.parametrize("name", ["hybrid", "s4d"])
def test_a_model_that_drafts_for_itself_is_always_right(name: str) -> None:
    """Of 18 greedy tokens the prompt gives the first; 6, 6 and 5 follow, since a guess is never the last."""
    model = decoder(*MODELS[name]).eval()
    engine = Engine(model, None, drafting=lambda: ModelDrafts(model, 5))
    assert len(served(engine, [Row((1, 2, 3))], [RowSettings(18)])[0]) == 18
    figures = engine.figures()
    assert (figures.steps, figures.drafted, figures.accepted) == (4, 14, 14)


def test_a_text_that_repeats_itself_takes_few_steps() -> None:
    table = [[1.0 if after == (before + 1) % 9 else 1e-9 for after in range(9)] for before in range(9)]
    engine = Engine(Bigram(table).eval(), None, drafting=lambda: PromptDrafts(8))
    text, = served(engine, [Row(tuple(range(9)))], [RowSettings(90)])
    figures = engine.figures()
    assert [new.token for new in text] == [place % 9 for place in range(90)]
    assert figures.steps < 15 and figures.accepted == figures.drafted > 70
    assert PromptDrafts(3).draft([1, 2, 3, 9, 1, 2, 4, 1, 2]) == [4, 1, 2] and PromptDrafts(3).draft([1, 2]) == []


@pytest.mark.parametrize(("kind", "sampling"), [
    ("prompt", Sampling()), ("random", Sampling(temperature=0.7, top_k=6, top_p=0.9, min_p=0.02)),
    ("bigram", Sampling())], ids=["prompt", "random", "bigram"])
def test_drawn_tokens_have_the_model_s_distribution(kind: str, sampling: Sampling) -> None:
    """The second and third new tokens together, of 600 rows: the sum of (found - wanted)^2 / wanted is below the 0.9999
    quantile of chi-square, which is about n + 3.72 sqrt(2 n) + 8.5 with n classes less one."""
    model, count = bigrams(1), 600
    step = torch.tensor([shares(model, [token], sampling) for token in range(VOCAB)], dtype=torch.float64)
    engine = Engine(model, None, drafting=drafting(kind, model), limits=EngineLimits(queue_requests=count))
    own = [RowSettings(4, sampling, seed=seed) for seed in range(count)]
    texts = served(engine, [Row((1, 2, 1))] * count, own, together=True)
    found = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    for text in texts:
        found[text[1].token, text[2].token] += 1
    first = step[1] @ step  # of the second new token
    wanted = first[:, None] * step
    common = wanted * count >= 5
    classes = [*zip(found[common].tolist(), wanted[common].tolist(), strict=True),
               (float(found[~common].sum()), float(wanted[~common].sum()))]
    assert not found[wanted == 0].any() and engine.figures().accepted > 0
    distance = sum((number - share * count) ** 2 / (share * count) for number, share in classes if share > 0)
    free = len(classes) - 1
    assert distance < free + 3.72 * math.sqrt(2 * free) + 8.5


def shares(model: LanguageModel, tokens: list[int], sampling: Sampling) -> list[float]:
    """The probabilities of the next token, without a state."""
    logits = model(torch.tensor([tokens])).y[:, -1] / sampling.temperature
    probabilities: list[float] = sampling.narrowed(logits)[0].softmax(-1).tolist()
    return probabilities


@pytest.mark.parametrize("place", ["advance", "settle"])
def test_rows_are_read_again_where_reading_ahead_fails(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder(*MODELS["hybrid"]).eval()
    rows = [Row((1, 2, 3, 1, 2, row)) for row in range(3)]
    engine, failures = Engine(model, None, drafting=lambda: PromptDrafts(4)), list[int]()
    real = getattr(DraftingSession, place)

    def broken(self: DraftingSession, *args: Any) -> None:
        if place == "settle" or self.guesses:
            failures.append(len(failures))
            if len(failures) % 3 == 1:
                raise RuntimeError("now and then")
        real(self, *args)

    monkeypatch.setattr(DraftingSession, place, broken)
    own = [RowSettings(20, row=row, log_probs=True) for row in range(3)]
    check_same(served(engine, rows, own), served(Engine(model, None), rows, own))
    assert len(failures) > 3


def test_what_cannot_be_guessed_ahead_is_refused() -> None:
    with pytest.raises(InputError, match=r"drafting: positions of this model turn with the length of the row"):
        Engine(decoder({**ROPE, "position": DYNAMIC}, MLP).eval(), None, drafting=lambda: PromptDrafts(2))
    with pytest.raises(InputError, match=r"most: 0 is out of range\. Give 1 or more"):
        PromptDrafts(0)

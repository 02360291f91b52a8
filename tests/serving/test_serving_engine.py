"""The engine on real models: log-probabilities of prompts, bytes known beforehand, and rows that fail alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.small_models import DYNAMIC, MLP, ROPE, VOCAB, Bigram, decoder, kinds, translator
from seeing_ahead import seeing_ahead
from weft.core.errors import FailedError, InputError, UnsupportedError
from weft.core.model import EncoderInputs, LanguageModel, ModelState
from weft.core.span import Output, Span
from weft.decoding import GREEDY, Ending, NewToken, Row, RowSettings, Sampling, generate
from weft.serving.engine import Engine
from weft.serving.prompt_reading import BetweenOperations
from weft.serving.requests import EngineLimits, Event, Failed, OverloadedError, PromptRead, Request
from weft.serving.running_batch import sizes

PROMPTS = [Row(tuple((3 * place + row) % VOCAB for place in range(2 + 5 * row))) for row in range(5)]


def answers(engine: Engine, requests: list[Request]) -> list[list[Event]]:
    heard: list[list[Event]] = [[] for _ in requests]
    for request, events in zip(requests, heard, strict=True):
        engine.submit(request, events.append)
    while engine.step():
        figures = engine.figures()
        assert figures.slots <= figures.running <= len(requests)
    return heard


def tokens(events: list[Event]) -> list[int]:
    return [event.token for event in events if isinstance(event, NewToken)]


def alone(model: LanguageModel, row: Row, new: int, sampling: Sampling = GREEDY, **options: Any) -> list[int]:
    return list(generate(model, [row], max_new_tokens=new, sampling=sampling, **options).rows[0].tokens)


@torch.no_grad()
def log_probs(model: LanguageModel, row: Row) -> Tensor:
    """The log-probabilities [T-1,V] of the prompt's tokens but the first, by one call without a state."""
    memory = None if row.source is None else model.encode(EncoderInputs(tokens=torch.tensor([row.source])))
    return model(torch.tensor([row.tokens]), None, Span(memory=memory)).y[0, :-1].log_softmax(-1)


@pytest.mark.parametrize("name", ["rope", "hybrid", "dynamic", "encoder_decoder-0", "ngram-0", "decoder-1"])
def test_the_log_probabilities_of_a_prompt_are_those_of_one_call(name: str) -> None:
    model = kinds()[name].eval()
    source = (1, 2) if model.takes_source else None
    rows = [Row(row.tokens[:17], source) for row in PROMPTS]
    engine = Engine(model, None, limits=EngineLimits(step_tokens=5, prefix_bytes=0))
    for new in (0, 3):
        heard = answers(engine, [Request(row, RowSettings(new), prompt_log_probs=top)
                                 for top, row in enumerate(rows)])
        for top, (row, events) in enumerate(zip(rows, heard, strict=True)):
            read, wanted = events[0], log_probs(model, row)
            assert isinstance(read, PromptRead) and read.log_probs is not None and len(tokens(events)) == new
            assert [each.token for each in read.log_probs] == list(row.tokens) and read.log_probs[0].log_prob is None
            for each, line in zip(read.log_probs[1:], wanted, strict=True):
                assert each.log_prob == pytest.approx(float(line[each.token]), abs=1e-9), "float64, cut otherwise"
                best = line.topk(min(top, len(line))).values.tolist()
                assert [value for _, value in each.top] == pytest.approx(best, abs=1e-9)
                assert all(float(line[token]) == pytest.approx(value, abs=1e-9) for token, value in each.top)
    assert engine.figures().finished == 10


@pytest.mark.parametrize("name", [name for name in kinds() if "-" not in name or name.endswith("-0")])
def test_the_bytes_of_a_row_are_known_before_it_is_admitted(name: str) -> None:
    model = kinds()[name].eval()
    engine = Engine(model, None)
    row = Row(PROMPTS[2].tokens[:6], (1, 2, 3) if model.takes_source else None)
    tickets = [engine.submit(Request(row, RowSettings(9)), lambda event: None) for _ in range(3)]
    for _ in range(6):
        engine.step()
    batch, = engine._rows._batches.values()
    assert batch.slots._session is not None and batch.slots.size == 3
    held = batch.slots._session.state.nbytes()
    assert engine.figures().state_bytes == 3 * tickets[0].nbytes
    exact = not model.takes_source  # sources are counted by powers of two
    assert held == 3 * tickets[0].nbytes if exact else held <= 3 * tickets[0].nbytes
    engine.close()
    assert engine.figures().state_bytes == 0 and engine._rows._batches == {}


class Poisoned(Bigram):
    """A bigram model whose call raises where one token is read, and whose logits are no numbers after another."""

    RAISES, NAN = 3, 4

    def __init__(self) -> None:
        step = torch.eye(6, dtype=torch.float64).roll(1, dims=1) * 0.9 + 0.1 / 6  # a token is followed by the next one
        super().__init__(step.tolist())
        self.readout.table[self.NAN] = torch.nan  # type: ignore[index]

    def run(self, tokens: Tensor, state: ModelState | None, span: Span) -> Output[ModelState]:
        if bool((tokens == self.RAISES).any()):
            raise RuntimeError("poison")
        return super().run(tokens, state, span)


def test_a_row_on_which_the_model_fails_does_not_take_the_others_along() -> None:
    model = Poisoned().eval()
    engine = Engine(model, None)
    rows = [Row((5,)), Row((1,)), Row((5, 5)), Row((4,)), Row((3, 5)), Row((0,))]
    new = [3, 9, 2, 5, 5, 3]  # 5 0 1 2 | 1 2 3! | 5 5 0 1 | 4! | 3! | 0 1 2 3
    heard = answers(engine, [Request(row, RowSettings(count, row=index))
                             for index, (row, count) in enumerate(zip(rows, new, strict=True))])
    assert [tokens(events) for events in heard] == [[0, 1, 2], [2, 3], [0, 1], [], [], [1, 2, 3]]
    failed = [events[-1].error for events in heard if isinstance(events[-1], Failed)]
    assert [type(error) for error in failed] == [FailedError] * 3
    assert [str(error).split(".")[0] for error in failed] == [
        "engine: the row could not be computed (RuntimeError)", "rows[3]: the model returned a logit of nan, so no "
        "token can be chosen", "engine: the row could not be computed (RuntimeError)"]
    figures = engine.figures()
    assert (figures.finished, figures.failed, figures.running, figures.state_bytes) == (3, 3, 0, 0)


class Capricious:
    """A constraint that fails after some tokens, and until then allows even ids."""

    def __init__(self, after: int) -> None:
        self.left = after

    def allowed(self) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise OSError("/secret/place")
        return torch.arange(VOCAB) % 2 == 0

    def push(self, token: int) -> bool:
        return False


def test_a_constraint_that_fails_or_cannot_be_made_fails_its_row_alone() -> None:
    model = decoder(ROPE, MLP).eval()

    def unmade() -> Capricious:
        raise ValueError("no grammar")

    limits: list[Any] = [None, lambda: Capricious(2), unmade, lambda: Capricious(99), None]
    heard = answers(Engine(model, None), [Request(row, RowSettings(6, constraint=limit, row=index))
                                          for index, (row, limit) in enumerate(zip(PROMPTS, limits, strict=True))])
    assert [len(tokens(events)) for events in heard] == [6, 2, 0, 6, 6]
    for index in (0, 4):
        assert tokens(heard[index]) == alone(model, PROMPTS[index], 6)
    assert all(token % 2 == 0 for token in tokens(heard[3]))
    assert all(isinstance(heard[index][-1], Failed) for index in (1, 2))


def test_drawn_tokens_do_not_depend_on_a_neighbour_that_fails() -> None:
    model = decoder(ROPE, MLP).eval()
    sampling = Sampling(1.2)
    engine = Engine(model, None)
    heard: list[list[Event]] = [[] for _ in PROMPTS]

    def gone(event: Event) -> None:
        if isinstance(event, NewToken):
            raise ConnectionError

    for row, (prompt, events) in enumerate(zip(PROMPTS, heard, strict=True)):
        own = RowSettings(12, sampling, row=0, seed=row)
        engine.submit(Request(prompt, own), gone if row == 2 else events.append)
    while engine.step():
        pass
    for row, prompt in enumerate(PROMPTS):
        assert row == 2 or tokens(heard[row]) == alone(model, prompt, 12, sampling, seed=row)
    assert engine.figures().failed == 1


def test_a_batch_grows_at_once_and_shrinks_late() -> None:
    assert sizes(1) == (1,) and sizes(5) == (1, 2, 3, 4, 5) and sizes(64) == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    model = decoder(ROPE, MLP).eval()
    engine, heard = Engine(model, None), [list[Event]() for _ in range(5)]
    for row, events in enumerate(heard):
        engine.submit(Request(PROMPTS[row], RowSettings(100 if row == 3 else 20)), events.append)
    seen = list[int]()
    while engine.step():
        seen += [batch.slots.size for batch in engine._rows._batches.values()]
    assert list(dict.fromkeys(seen)) == [6, 1] and seen.count(6) in range(45, 60)
    for row, events in enumerate(heard):
        assert tokens(events) == alone(model, PROMPTS[row], 100 if row == 3 else 20)


def test_rows_of_other_lengths_and_adapters_have_batches_of_their_own() -> None:
    model, other = decoder(ROPE, MLP).eval(), decoder(ROPE, MLP).eval()
    with torch.no_grad():
        other.readout.weight.mul_(-1)  # type: ignore[operator, union-attr]
    engine = Engine(model, None, adapters={"turned": other})
    requests = [Request(PROMPTS[1], RowSettings(8)), Request(PROMPTS[1], RowSettings(8), adapter="turned"),
                Request(PROMPTS[1], RowSettings(300, ending=Ending(tuple(range(VOCAB)))))]
    heard = answers(engine, requests)
    assert tokens(heard[0]) == alone(model, PROMPTS[1], 8) and tokens(heard[1]) == alone(other, PROMPTS[1], 8)
    assert tokens(heard[2]) == tokens(heard[0])[:1]
    assert {engine._rows.place(each).capacity for each in requests} == {256, 1024}
    with pytest.raises(InputError, match=r"adapter: there is no adapter 'turnd'\. Did you mean 'turned'\?"):
        engine.submit(Request(PROMPTS[1], RowSettings(8), adapter="turnd"), print)


def test_what_cannot_be_served_is_refused_before_it_is_queued() -> None:
    model = decoder({"kind": "attention", "n_heads": 2}, MLP, position={"kind": "learned", "std": 1.0}).eval()
    engine = Engine(model, None, limits=EngineLimits(context=32, queue_requests=1))
    for row, settings, message in (
            (Row((1, 99)), RowSettings(2), r"rows\[0\]\[1\]: id 99 is outside the vocabulary of 11 ids"),
            (Row(()), RowSettings(2), r"rows\[0\]: an empty prompt, and no start token"),
            (Row((1,)), RowSettings(-1), "max_new_tokens: -1 is negative"),
            (Row((1,)), RowSettings(2, ending=Ending(strings=("a",))), "stop strings need a tokenizer"),
            (Row((1,) * 30), RowSettings(4), "request: 30 tokens of prompt and 4 new ones are 33 to read, and a row of "
                                             "this engine may read 32. Shorten the prompt or lower max_new_tokens."),
            (Row((1,) * 30), RowSettings(99), r"rows\[0\]: 30 tokens of prompt and 99 new ones are 128 to read, and "
                                              "this model has positions for 64 tokens")):
        with pytest.raises(InputError, match=message):
            engine.submit(Request(row, settings), print)
    with pytest.raises(InputError, match=r"prompt_log_probs: -1 is negative. Give 0 or more"):
        engine.submit(Request(Row((1,)), RowSettings(1), prompt_log_probs=-1), print)
    assert engine.figures().waiting == 0
    engine.submit(Request(Row((1,)), RowSettings(1)), lambda event: None)
    with pytest.raises(OverloadedError):
        engine.submit(Request(Row((1,)), RowSettings(1)), print)
    with pytest.raises(InputError, match=r"model: the model is in training mode.*Call model\.eval\(\) first"):
        Engine(copy.deepcopy(model).train(), None)
    with pytest.raises(UnsupportedError, match="serving needs probabilities of the next token"):
        Engine(seeing_ahead(copy.deepcopy(model)).eval(), None)


@pytest.mark.parametrize(("heads", "keys", "masks"), [(6, 2, 1), (6, 2, 6), (5, 5, 1), (4, 1, 4)])
def test_attention_that_is_interrupted_between_its_heads_is_the_same(heads: int, keys: int, masks: int) -> None:
    generator, looks = torch.Generator().manual_seed(1), list[None]()
    q, k, v, mask = (torch.randn(2, *shape, generator=generator, dtype=torch.float64) for shape in (
        (heads, 64, 8), (keys, 2400, 8), (keys, 2400, 4), (masks, 64, 2400)))
    wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=heads != keys)
    with BetweenOperations(lambda: looks.append(None)):
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=heads != keys)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)  # float64
    assert len(looks) == (heads // keys if keys < heads else 3)


def test_an_empty_prompt_begins_with_the_start_token() -> None:
    model = translator(VOCAB).eval()
    engine = Engine(model, None, start=2)
    events, = answers(engine, [Request(Row((), (3, 1)), RowSettings(5), prompt_log_probs=0)])
    assert isinstance(events[0], PromptRead) and events[0].log_probs is not None
    assert [each.token for each in events[0].log_probs] == [2]
    assert tokens(events) == alone(model, Row((2,), (3, 1)), 5)


def test_rotations_that_depend_on_length_are_never_cut() -> None:
    model = decoder({**ROPE, "position": DYNAMIC}, MLP).eval()
    engine = Engine(model, None, limits=EngineLimits(step_tokens=4))
    heard = answers(engine, [Request(row, RowSettings(6)) for row in PROMPTS])
    assert [tokens(events) for events in heard] == [alone(model, row, 6) for row in PROMPTS]

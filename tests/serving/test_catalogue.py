"""Every kind of model served: rows that come, leave and share prefixes have the text that they have alone.

In `make test` every kind of state and of model; with WEFT_SERVED=1 all examples of all mixers and feed-forwards too,
which takes some three minutes.
"""

from __future__ import annotations

import copy
import os
import random
from typing import Any

import pytest
import torch

from decoding.small_models import kinds
from decoding.test_decoding_tape import layers, made
from weft.core.model import EncoderInputs, LanguageModel
from weft.core.span import Span
from weft.decoding import NewToken, Row, RowSettings
from weft.decoding.mode import declares_length
from weft.serving.engine import Engine
from weft.serving.requests import EngineLimits, Event, Failed, PromptRead, Request

ROWS = 16
WHOLE = "WEFT_SERVED" in os.environ
LIMITS = EngineLimits(rows=ROWS, step_tokens=9, prefix_bytes=1 << 22, prefix_tokens=4)
TIE = 1e-5
"""Logits of float32, of order 1, are the same up to this: the call on all tokens at once adds in another order."""


def names() -> list[str]:
    """All models, or one of each kind."""
    return [*kinds(), *layers()] if WHOLE else [name for name in kinds() if "-" not in name or name.endswith("-0")]


def rows_of(model: LanguageModel, generator: random.Random) -> list[Row]:
    """Prompts of different lengths, of which some continue the beginnings of others."""
    limit = min(model.limit() or 40, 40) // 2

    def ids(most: int) -> list[int]:
        return [generator.randrange(model.vocab_size) for _ in range(generator.randint(1, most))]

    found = list[list[int]]()
    for _ in range(ROWS + 8):
        begun = generator.choice(found)[: generator.randint(1, limit)] if found and generator.random() < 0.5 else []
        found.append((begun + ids(max(1, limit // 2)))[:limit])
    sources = [tuple(number % model.source_vocab_size for number in ids(5)) if model.takes_source else None
               for _ in found]
    return [Row(tuple(tokens), source) for tokens, source in zip(found, sources, strict=True)]


def served(engine: Engine, rows: list[Row], new: int, generator: random.Random) -> tuple[list[list[Event]], set[int]]:
    """The events of all rows, which arrive at random steps; and the rows that were cancelled on the way."""
    heard: list[list[Event]] = [[] for _ in rows]
    waiting, tickets, cancelled = list(range(len(rows))), dict[int, Any](), set[int]()
    while waiting or engine.figures().running or engine.figures().waiting:
        for row in waiting[: generator.choice((0, 1, 5))]:
            waiting.remove(row)
            tickets[row] = engine.submit(Request(rows[row], RowSettings(new, row=row)), heard[row].append)
        if tickets and generator.random() < 0.06:
            cancelled.add(row := generator.choice(list(tickets)))
            engine.cancel(tickets[row])
        engine.step()
    return heard, cancelled


@torch.no_grad()
def check_greedy(model: LanguageModel, row: Row, tokens: list[int], case: str) -> None:
    """Each token is the most probable one after all before it, by one call without a state, or as probable as that."""
    memory = None if row.source is None else model.encode(EncoderInputs(tokens=torch.tensor([row.source])))
    whole, last = [*row.tokens, *tokens], len(row.tokens) - 1
    ends = range(last + 1, len(whole)) if declares_length(model) else [len(whole) - 1]  # each length by itself
    logits = [model(torch.tensor([whole[:end]]), None, Span(memory=memory)).y[0] for end in ends]
    told = torch.stack([each[-1] for each in logits]) if declares_length(model) else logits[0][last:]
    behind = told.max(-1).values - told.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert behind.max() <= TIE, case


@pytest.mark.parametrize("name", names())
def test_the_text_of_a_row_among_others_is_its_text_alone(name: str) -> None:
    model, generator = copy.deepcopy(made(name)).float(), random.Random(name)
    rows = rows_of(model, generator)
    engine, new = Engine(model, None, limits=LIMITS), 10
    heard, cancelled = served(engine, rows, new, generator)
    for row, events in enumerate(heard):
        tokens = [event.token for event in events if isinstance(event, NewToken)]
        assert not any(isinstance(event, Failed) for event in events), f"row {row}: {events[-1]}"
        assert isinstance(events[0], PromptRead) if events else row in cancelled
        assert len(tokens) == new or row in cancelled
        if tokens:
            check_greedy(model, rows[row], tokens, f"row {row}")
    figures = engine.figures()
    assert (figures.running, figures.waiting, figures.slots, figures.state_bytes) == (0, 0, 0, 0)
    assert figures.finished + figures.cancelled == len(rows)
    longest = max((row for row in range(len(rows)) if row not in cancelled), key=lambda row: len(rows[row].tokens))
    again = Row((*rows[longest].tokens, 0), rows[longest].source)
    (begun, *_), = served(engine, [again], 1, random.Random(3))[0]
    assert isinstance(begun, PromptRead)
    assert begun.cached == len(again.tokens) - 1 or model.takes_source or declares_length(model), begun

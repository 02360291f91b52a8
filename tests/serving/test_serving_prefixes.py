"""Kept states: what is found for a prompt, why, and that a prompt continued from one is as if it had been read."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import pytest
import torch

from decoding.small_models import MLP, ROPE, VOCAB, decoder, kinds
from decoding.test_decoding_tape import layers, made
from serving.test_serving_engine import Poisoned, alone, answers, tokens
from weft.core.model import LanguageModel
from weft.decoding import NewToken, Row, RowSettings
from weft.decoding.prompts import PromptState
from weft.serving.engine import Engine
from weft.serving.prefixes import GHOSTS, Prefixes, is_cuttable
from weft.serving.requests import EngineLimits, Event, PromptRead, Request

LIMITS = EngineLimits(step_tokens=16, prefix_tokens=4)
WINDOW = {**ROPE, "mask": "causal & window(4)"}
WHOLE = "WEFT_SERVED" in os.environ
BASE = tuple(place * 5 % VOCAB for place in range(40))


def ask(engine: Engine, prompt: tuple[int, ...], new: int = 3, **options: Any) -> tuple[PromptRead, list[Event]]:
    events, = answers(engine, [Request(Row(prompt), RowSettings(new, log_probs=True), **options)])
    assert isinstance(events[0], PromptRead)
    return events[0], events[1:]


def branches(model: LanguageModel, seed: int) -> Iterator[tuple[int, ...]]:
    """Prompts that begin like others before them, or continue them."""
    generator, found = random.Random(seed), list[tuple[int, ...]]()
    for _ in range(12):
        begun = generator.choice(found) if found and generator.random() < 0.8 else ()
        cut = begun[: generator.randint(0, len(begun))] if generator.random() < 0.7 else begun
        more = tuple(generator.randrange(model.vocab_size) for _ in range(generator.randint(1, 12)))
        found.append((cut + more)[:44])
        yield found[-1]


@torch.no_grad()
def wanted(model: LanguageModel, prompt: tuple[int, ...], new: list[int]) -> list[float]:
    logits = model(torch.tensor([[*prompt, *new]])).y[0, len(prompt) - 1:-1].log_softmax(-1)
    return [float(line[token]) for line, token in zip(logits, new, strict=True)]


def stateful() -> list[str]:
    """Models whose states differ, without rotations that depend on length; with WEFT_SERVED=1 one of every mixer."""
    return [*(name for name in kinds() if "-" not in name and name not in ("longrope", "dynamic")),
            "ngram-0", "feedforward-0", *(name for name in layers() if WHOLE and name.endswith(" 0"))]


@pytest.mark.parametrize("name", stateful())
def test_a_reused_beginning_gives_the_log_probabilities_of_one_that_is_read(name: str) -> None:
    model = made(name)
    engine, cached = Engine(model, None, limits=LIMITS), 0
    for prompt in branches(model, seed=7):
        read, events = ask(engine, prompt[: (model.limit() or 64) - 3])
        assert read.cached < len(prompt) and (read.cached >= LIMITS.prefix_tokens) == (read.reuse == "reused")
        cached += read.cached
        new = [event for event in events if isinstance(event, NewToken)]
        values = wanted(model, prompt, [event.token for event in new])
        assert [event.log_prob for event in new] == pytest.approx(values, abs=1e-8), "float64, cut otherwise"
    figures = engine.figures()
    assert cached == figures.cached_tokens > 0 and figures.state_bytes == 0
    assert sum(dict(figures.reuse).values()) == figures.finished == 12
    assert figures.prefix_bytes > 0 and figures.prefixes > 0


def test_attention_serves_any_beginning_and_says_why_not() -> None:
    engine = Engine(decoder(ROPE, MLP).eval(), None, limits=LIMITS)
    told = [ask(engine, prompt)[0] for prompt in (
        BASE, BASE, BASE[:9], (*BASE[:21], 3, 4, 5, 6), BASE[:3], (9, 9, *BASE), (*BASE[:3], 10, 10, 10, 10))]
    assert [(each.cached, each.reuse) for each in told] == [
        (0, "nothing alike"), (39, "reused"), (8, "reused"), (21, "reused"), (0, "too short"), (0, "nothing alike"),
        (0, "nothing alike")]
    assert ask(engine, BASE, prompt_log_probs=0)[0].reuse == "not asked"


@pytest.mark.parametrize("layers", [("lstm",), (WINDOW, MLP), (ROPE, "lstm", WINDOW)], ids=["lstm", "window", "hybrid"])
def test_a_state_that_cannot_be_cut_is_kept_where_prompts_end_and_diverge(layers: tuple[Any, ...]) -> None:
    engine = Engine(decoder(*layers).eval(), None, limits=LIMITS)
    first = ask(engine, BASE)
    answer = tuple(tokens(first[1]))
    prompts = ((*BASE, *answer[:2], 8, 8),             # the next turn of a chat
               (*BASE, 1, 1, 1),                       # another text after the same prompt
               (*BASE[:20], 7, 7, 7, 7), (*BASE[:20], 6, 6, 6, 6), (*BASE[:20], 5, 5, 5, 5))
    told = [ask(engine, prompt)[0] for prompt in prompts]
    assert [(each.cached, each.reuse) for each in told] == [
        (42, "reused"), (40, "reused"), (0, "no snapshot"), (20, "reused"), (20, "reused")]


def test_a_long_prompt_of_a_bounded_state_leaves_states_on_the_way() -> None:
    model = decoder("lstm").eval()
    engine = Engine(model, None, limits=EngineLimits(step_tokens=256))
    prompt = tuple(place * 7 % VOCAB for place in range(700))
    ask(engine, prompt)
    read, events = ask(engine, (*prompt[:600], 1, 2, 3))
    assert (read.cached, read.reuse) == (512, "reused")
    assert tokens(events) == alone(model, Row((*prompt[:600], 1, 2, 3)), 3)


def test_the_states_that_were_not_used_for_longest_are_dropped() -> None:
    model = decoder("lstm").eval()
    one = Engine(model, None, limits=LIMITS)
    ask(one, BASE, new=1)
    size = one.figures().prefix_bytes
    engine = Engine(model, None, limits=EngineLimits(prefix_tokens=4, prefix_bytes=2 * size))
    prompts = [(first, *BASE) for first in range(3)]
    for prompt in (prompts[0], prompts[1]):
        ask(engine, prompt, new=1)
    assert ask(engine, (*prompts[0], 4), new=1, keep=False)[0].cached == 41
    ask(engine, prompts[2], new=1)
    figures = engine.figures()
    assert (figures.prefixes, figures.prefix_bytes) == (2, 2 * size)
    told = [ask(engine, (*prompt, 4), new=1, keep=False)[0] for prompt in prompts]
    assert [(each.cached, each.reuse) for each in told] == [(41, "reused"), (0, "dropped"), (41, "reused")]
    nothing = Engine(model, None, limits=EngineLimits(prefix_tokens=4, prefix_bytes=0))
    assert [ask(nothing, BASE)[0].cached for _ in range(2)] == [0, 0] and nothing.figures().prefixes == 0


def test_a_row_that_was_not_finished_or_not_to_be_kept_leaves_nothing() -> None:
    model = decoder(ROPE, MLP).eval()
    engine = Engine(model, None, limits=LIMITS)
    ask(engine, BASE, keep=False)
    assert engine.figures().prefixes == 0
    ticket = engine.submit(Request(Row(BASE), RowSettings(500)), lambda event: None)
    for _ in range(20):
        engine.step()
    engine.cancel(ticket)
    engine.step()
    assert ask(engine, (*BASE, 1, 2))[0].cached == 40, "its prompt alone"


def test_kept_states_of_adapters_are_apart() -> None:
    model = decoder(ROPE, MLP).eval()
    engine = Engine(model, None, limits=LIMITS, adapters={"other": decoder(ROPE, MLP).eval()})
    ask(engine, BASE)
    assert ask(engine, BASE, adapter="other")[0].cached == 0
    assert ask(engine, BASE, adapter="other")[0].cached == ask(engine, BASE)[0].cached == 39


def test_what_can_be_cut() -> None:
    can = {name: is_cuttable(kinds()[name].init_state(1)) for name in kinds() if "-" not in name}
    assert {name for name, it in can.items() if it} == {"rope", "alibi", "learned", "longrope", "dynamic"}


def tokens_of(node: Any) -> tuple[int, ...]:
    return () if node.parent is None else (*tokens_of(node.parent), *node.edge)


@pytest.mark.parametrize("layer", [ROPE, "lstm"], ids=["cuttable", "whole"])
def test_the_tree_finds_what_a_search_through_all_kept_states_finds(layer: Any) -> None:
    model, generator = decoder(layer).eval(), random.Random(5)
    cuttable = layer is ROPE
    one = {length: model.init_state(1, capacity=length) for length in range(13)}
    kept = Prefixes(6 * one[12].nbytes(), 2, cuttable=cuttable)
    for _ in range(1500):
        row = tuple(generator.randrange(2) for _ in range(generator.randint(3, 12)))
        if generator.random() < 0.4:
            state = one[len(row)].clone()
            state.clock.seen.fill_(len(row))
            kept.keep(None, PromptState(row, state))
            assert kept.nbytes == sum(node.nbytes for node in kept._kept) <= 6 * one[12].nbytes()
        there = [tokens_of(node) for node in kept._kept]
        lengths = [sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(row[:-1], each, strict=False)))
                   for each in there]
        wanted = max((length for length, each in zip(lengths, there, strict=True)
                      if length >= 2 and (cuttable or length == len(each))), default=0)
        found = kept.find(None, row).begun
        assert (0 if found is None else len(found.tokens)) == wanted
        assert found is None or (found.tokens == row[:wanted] and int(found.state.clock.seen) == wanted)
        assert len(kept._ghosts) <= GHOSTS


def test_a_row_with_a_reused_beginning_outlives_a_neighbour_that_fails() -> None:
    model = Poisoned().eval()
    engine = Engine(model, None, limits=EngineLimits(prefix_tokens=2))
    ask(engine, (5, 5, 5, 5), new=1)
    heard = answers(engine, [Request(Row((5, 5, 5, 0)), RowSettings(2)), Request(Row((3, 5)), RowSettings(2))])
    assert tokens(heard[0]) == [1, 2] and tokens(heard[1]) == []
    assert heard[0][0] == PromptRead(3, "reused")

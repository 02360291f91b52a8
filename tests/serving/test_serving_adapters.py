"""Adapters on one base: each row has the text of its adapter alone, whatever shares its batch, and weights are once."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch

from decoding.small_models import MLP, ROPE, VOCAB, decoder, reseeded
from weft.core.model import LanguageModel
from weft.decoding import NewToken, Row, RowSettings, Sampling, Slots, generate
from weft.linear.lora import LoRAConfig
from weft.linear.low_rank import adapted_maps
from weft.linear.rewrite import rewritten
from weft.serving.engine import Engine
from weft.serving.pace import Pace
from weft.serving.requests import EngineLimits, Event, PromptRead, Request
from weft.serving.row_adapters import RowAdapted, row_adapted, share_weights

WINDOW = {**ROPE, "mask": "causal & window(4)", "n_kv_heads": 1}
MODELS: dict[str, tuple[Any, ...]] = {"attention": (ROPE, MLP), "hybrid": (ROPE, WINDOW, "lstm", "s4d", MLP),
                                      "mamba": ("mamba", {"kind": "glu"}), "rwkv": ("rwkv4", "channel_mix")}
PLAIN = (LoRAConfig(rank=2), LoRAConfig(rank=3, alpha=3.0, rank_stabilised=True), LoRAConfig(rank=1, dropout=0.5))
LIMITS = EngineLimits(rows=6, step_tokens=9, prefix_bytes=1 << 22, prefix_tokens=4)


def adapted(model: LanguageModel, seed: int, *configs: LoRAConfig) -> LanguageModel:
    """A copy with adapters whose terms are drawn, and with other values where ``also_train`` lets them train."""
    found, generator = rewritten(copy.deepcopy(model), configs).eval(), reseeded(seed)
    with torch.no_grad():
        for module in adapted_maps(found).values():
            module.perturb(generator)
        terms = {id(each) for module in adapted_maps(found).values() for each in module.trained()}
        for each in found.parameters():
            if each.requires_grad and id(each) not in terms:
                each.add_(0.3)
    return found


def copies(model: LanguageModel, models: dict[str, LanguageModel]) -> dict[str | None, LanguageModel]:
    """The models by the names of their adapters, which share no tensor with those of an engine."""
    return {None: model, **{name: copy.deepcopy(each) for name, each in models.items()}}


def bytes_of(*models: LanguageModel) -> int:
    """Bytes of all tensors, each once."""
    every = {each.data_ptr(): each for model in models for each in (*model.parameters(), *model.buffers())}
    return sum(each.numel() * each.element_size() for each in every.values())


def rows_of(count: int) -> list[Row]:
    generator = random.Random(5)
    begun = tuple(generator.randrange(VOCAB) for _ in range(9))
    return [Row((*begun[: generator.randint(1, 9)], *(generator.randrange(VOCAB) for _ in range(1 + row % 7))))
            for row in range(count)]


def served(engine: Engine, requests: list[Request]) -> list[list[Event]]:
    """The events of requests that arrive at random steps."""
    heard: list[list[Event]] = [[] for _ in requests]
    generator, waiting = random.Random(8), list(range(len(requests)))
    while waiting or engine.figures().running or engine.figures().waiting:
        for row in waiting[: generator.choice((0, 1, 4))]:
            waiting.remove(row)
            engine.submit(requests[row], heard[row].append)
        engine.step()
    return heard


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_different_adapters_have_the_text_of_each_alone(name: str) -> None:
    model = decoder(*MODELS[name]).eval()
    models = {"a": adapted(model, 1, PLAIN[0]), "b": adapted(model, 2, PLAIN[1]), "c": adapted(model, 3, PLAIN[2])}
    alone = copies(model, models)
    engine = Engine(model, None, limits=LIMITS, adapters=models)
    names = [(None, "a", "b", "c")[row % 4] for row in range(20)]
    own = [RowSettings(12, (Sampling(0), Sampling(1.1))[row % 2], row=row, log_probs=True) for row in range(20)]
    rows = rows_of(20)
    for turn in range(2):  # the second time the states of the first are used again
        heard = served(engine, [Request(row, each, adapter=adapter)
                                for row, each, adapter in zip(rows, own, names, strict=True)])
        for row, each, adapter, events in zip(rows, own, names, heard, strict=True):
            found = [event for event in events if isinstance(event, NewToken)]
            wanted = plainly(alone[adapter], row, each)
            assert [new.token for new in found] == [new.token for new in wanted]
            # float64 through a dozen layers, in products of other shapes
            assert [new.log_prob for new in found] == pytest.approx([new.log_prob for new in wanted], abs=1e-9)
        assert not turn or any(isinstance(events[0], PromptRead) and events[0].cached for events in heard)
    assert len({id(each) for each in engine._models.values()}) == 1, "one batch for all of them"
    assert isinstance(engine._models["a"], RowAdapted)


def plainly(model: LanguageModel, row: Row, own: RowSettings) -> list[NewToken]:
    """A row alone, by the model's own code."""
    slots, found = Slots(model, 1, capacity=64, plain=True), list[NewToken]()
    slots.admit(row, own)
    while slots.live:
        found += slots.step()
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_long_prompt_that_rows_of_other_adapters_interrupt_keeps_its_own(
        name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "due", lambda pace, now: True)  # at every operation
    model = decoder(*MODELS[name]).eval()
    models = {"a": adapted(model, 1, PLAIN[0]), "b": adapted(model, 2, PLAIN[1])}
    alone, rows = copies(model, models), [Row(tuple(place % 7 for place in range(39))), *rows_of(6)]
    engine = Engine(model, None, limits=LIMITS, adapters=models)
    names = [("a", None, "b")[row % 3] for row in range(7)]
    heard: list[list[Event]] = [[] for _ in rows]
    for row in (1, 2, 0, 3, 4, 5, 6):
        engine.submit(Request(rows[row], RowSettings(40 if row in (1, 2) else 9), adapter=names[row],
                              prompt_log_probs=0 if row == 0 else None), heard[row].append)
    before = engine.figures().steps
    engine.step()
    engine.step()
    assert engine.figures().steps > before + 20, "the long prompt was interrupted"
    while engine.step():
        pass
    for row, events in enumerate(heard):
        own, = generate(alone[names[row]], [rows[row]], max_new_tokens=40 if row in (1, 2) else 9).rows
        assert [event.token for event in events if isinstance(event, NewToken)] == list(own.tokens), f"row {row}"
    read, = (event for event in heard[0] if isinstance(event, PromptRead))
    logits = alone["a"](torch.tensor([rows[0].tokens])).y[0, :-1].log_softmax(-1)
    wanted = logits.gather(1, torch.tensor(rows[0].tokens[1:])[:, None])[:, 0]
    told = torch.tensor([each.log_prob for each in (read.log_probs or ())[1:]], dtype=torch.float64)
    torch.testing.assert_close(told, wanted, atol=1e-9, rtol=0)  # float64; a piece's sums have another order


def test_the_weights_of_the_base_are_in_memory_once() -> None:
    model = decoder(*MODELS["hybrid"]).eval()
    models = {name: adapted(model, seed, config) for seed, (name, config) in enumerate(zip("abc", PLAIN, strict=True))}
    terms = sum(each.numel() * each.element_size() for one in models.values()
                for module in adapted_maps(one).values() for each in module.trained())
    base = bytes_of(model)
    assert bytes_of(model, *models.values()) > 4 * base
    engine = Engine(model, None, adapters=models)
    assert bytes_of(model, *models.values()) == base + terms, "what the caller has"
    many, = {id(each): each for each in engine._models.values()}.values()
    owners = {each.data_ptr(): each.nbytes for name, each in many.named_buffers() if name.endswith("owners")}
    assert bytes_of(model, many) == base + terms + sum(owners.values())


@pytest.mark.parametrize("config", [
    LoRAConfig(rank=2, dora=True), LoRAConfig(rank=2, also_train=["*norm*"]), LoRAConfig(rank=1, maps=["*recurrent*"])],
    ids=["dora", "also_train", "recurrent"])
def test_other_adapters_are_served_apart_on_the_same_weights(config: LoRAConfig) -> None:
    model = decoder("lstm", MLP).eval()
    models = {"plain": adapted(model, 1, LoRAConfig(rank=2, maps=["up", "down"])), "other": adapted(model, 2, config)}
    alone = copies(model, models)
    engine = Engine(model, None, limits=LIMITS, adapters=models)
    assert isinstance(engine._models["plain"], RowAdapted) and not isinstance(engine._models["other"], RowAdapted)
    assert bytes_of(model, models["other"]) < 1.5 * bytes_of(model)
    rows, names = rows_of(9), [(None, "plain", "other")[row % 3] for row in range(9)]
    heard = served(engine, [Request(row, RowSettings(8), adapter=name) for row, name in zip(rows, names, strict=True)])
    for row, name, events in zip(rows, names, heard, strict=True):
        found = [event.token for event in events if isinstance(event, NewToken)]
        assert found == list(generate(alone[name], [row], max_new_tokens=8).rows[0].tokens)


def test_a_prompt_is_never_continued_from_the_state_of_another_adapter() -> None:
    model = decoder(ROPE, MLP).eval()
    models = {"a": adapted(model, 1, PLAIN[0]), "b": adapted(model, 2, PLAIN[1])}
    engine, row = Engine(model, None, limits=LIMITS, adapters=models), Row(tuple(range(9)))
    told = []
    for name in ("a", "b", None, "b", "a"):
        events, = served(engine, [Request(row, RowSettings(3), adapter=name)])
        assert isinstance(events[0], PromptRead)
        told.append((events[0].cached, events[0].reuse))
    assert told == [(0, "nothing alike")] * 3 + [(8, "reused")] * 2


def test_rows_that_are_read_again_after_a_failure_keep_their_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder(ROPE, MLP).eval()
    models = {"a": adapted(model, 1, PLAIN[0]), "b": adapted(model, 2, PLAIN[1])}
    alone = copies(model, models)
    engine, rows, names = Engine(model, None, adapters=models), rows_of(6), [None, "a", "b"] * 2
    heard: list[list[Event]] = [[] for _ in rows]
    for row, name, events in zip(rows, names, heard, strict=True):
        engine.submit(Request(row, RowSettings(10), adapter=name), events.append)
    for _ in range(4):
        engine.step()
    batch, = engine._rows._batches.values()
    session = batch.slots._session
    assert session is not None
    monkeypatch.setattr(session, "advance", lambda tokens: (_ for _ in ()).throw(RuntimeError("once")))
    while engine.step():
        pass
    assert batch.slots._session is not session
    for row, name, events in zip(rows, names, heard, strict=True):
        found = [event.token for event in events if isinstance(event, NewToken)]
        assert found == list(generate(alone[name], [row], max_new_tokens=10).rows[0].tokens)


def test_a_model_of_many_adapters_is_refused_where_a_call_would_differ() -> None:
    model = decoder(ROPE, {"kind": "moe", "n_experts": 3, "top_k": 1}).eval()
    expert = adapted(model, 1, LoRAConfig(rank=1, kinds=["*"]))
    share_weights(model, expert)
    assert row_adapted(model, {"a": expert}) is None
    queries = adapted(model, 1, LoRAConfig(rank=1, maps=["qkv"]))
    share_weights(model, queries)
    many = row_adapted(model, {"a": expert, "b": queries})
    assert many is not None and many.names == ("b",)

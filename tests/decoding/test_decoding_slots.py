"""Rows that join and leave a running batch, each continued in its own way, against each row alone."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from decoding.small_models import LONGROPE, MLP, ROPE, VOCAB, Bigram, build, decoder, kinds, reseeded
from weft.core.errors import FailedError, InputError, UnsupportedError
from weft.core.model import EncoderInputs, LanguageModel
from weft.core.span import Span
from weft.decoding import GREEDY, CompiledStep, Ending, Row, RowSettings, Sampling, Slots
from weft.decoding.sampling import noise
from weft.tokenizers import ByteTokenizer

WINDOW = {**ROPE, "mask": "causal & window(4)", "n_kv_heads": 1}
MODELS: dict[str, tuple[Any, ...]] = {
    "attention": (ROPE, MLP), "window": (WINDOW, MLP), "lstm": ("lstm",), "s4d": ("s4d", MLP),
    "hybrid": (ROPE, WINDOW, "lstm", "s4d", MLP)}
"""The specimen: every sort of state that serving meets, and all of them in one model."""
SETTINGS: tuple[dict[str, Any], ...] = (
    {"max_new_tokens": 21}, {"max_new_tokens": 9, "sampling": Sampling(temperature=1.3)},
    {"max_new_tokens": 14, "sampling": Sampling(temperature=0.9, top_k=6, top_p=0.9), "seed": 8},
    {"max_new_tokens": 5, "sampling": Sampling(temperature=0, repetition_penalty=1.4)},
    {"max_new_tokens": 17, "sampling": Sampling(min_p=0.05, repetition_penalty=1.2), "seed": 8},
    {"max_new_tokens": 12}, {"max_new_tokens": 30, "sampling": Sampling(temperature=2.0), "log_probs": True})


def specimen(name: str) -> LanguageModel:
    return decoder(*MODELS[name]).eval()


def prompts(count: int, model: LanguageModel) -> list[Row]:
    generator = reseeded(3)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(VOCAB, (length,), generator=generator).tolist())

    return [Row(ids(1 + 3 * row % 8), ids(2 + row % 3) if model.takes_source else None) for row in range(count)]


def settings(count: int) -> list[RowSettings]:
    return [RowSettings(row=row, **SETTINGS[row % len(SETTINGS)]) for row in range(count)]


@torch.no_grad()
def alone(model: LanguageModel, prompt: Row, own: RowSettings) -> tuple[list[int], list[float]]:
    """The row's tokens and their log-probabilities, by running all of it again for each, without a state."""
    memory = None if prompt.source is None else model.encode(EncoderInputs(tokens=torch.tensor([prompt.source])))
    numbers, tokens, values = noise(own.seed, own.row), list(prompt.tokens), []
    while len(values) < own.max_new_tokens:
        logits = model(torch.tensor([tokens]), None, Span(memory=memory)).y[:, -1]
        seen = torch.zeros(1, logits.shape[1], dtype=torch.bool)
        seen[0, tokens] = True
        number = None if own.sampling.greedy else torch.tensor([next(numbers)], dtype=torch.float64)
        tokens.append(int(own.sampling.choose(logits, seen, number)))
        values.append(float(logits.log_softmax(-1)[0, tokens[-1]]))
        if tokens[-1] in own.ending.tokens:
            break
    return tokens[len(prompt.tokens):], values


def served(slots: Slots, rows: list[Row], own: list[RowSettings], every: int = 2,
           retired: dict[int, int] | None = None) -> dict[int, list[Any]]:
    """All rows through the slots: one more is admitted at every few steps where a slot is free. ``retired`` rows are
    sent away once they have so many tokens."""
    found: dict[int, list[Any]] = {row.row: [] for row in own}
    waiting, slot_of, step = list(range(len(rows))), dict[int, int](), 0
    while waiting or slots.live:
        if waiting and slots.free and step % every == 0:
            row = waiting.pop(0)
            slot_of[row] = slots.admit(rows[row], own[row])
        for new in slots.step():
            found[new.row].append(new)
            if (retired or {}).get(new.row) == len(found[new.row]):
                slots.retire(slot_of[new.row])
        step += 1
    return found


@pytest.mark.parametrize("name", MODELS)
def test_rows_that_join_and_leave_equal_each_row_alone(name: str) -> None:
    model = specimen(name)
    rows, own = prompts(9, model), settings(9)
    slots = Slots(model, 3, capacity=40)
    found = served(slots, rows, own)
    for row, line in enumerate(own):
        tokens, values = alone(model, rows[row], line)
        assert [new.token for new in found[row]] == tokens, f"row {row}"
        if line.log_probs:  # float64 through a dozen layers
            assert [new.log_prob for new in found[row]] == pytest.approx(values, rel=1e-9, abs=1e-9)
        assert [new.finish for new in found[row]] == [None] * (len(tokens) - 1) + ["length"]
    assert slots.live == () and slots.free == (0, 1, 2)


@pytest.mark.parametrize("name", sorted(set(kinds()) - {"hybrid", "lstm", "s4d", "window"}))
def test_every_kind_of_model_serves_rows_that_come_and_go(name: str) -> None:
    model = kinds()[name].eval()
    limit = model.limit() or 64
    rows = [Row(row.tokens[:3], row.source) for row in prompts(5, model)]
    own = [RowSettings(min(4 + 3 * row, limit - 3), (GREEDY, Sampling())[row % 2], row=row) for row in range(5)]
    found = served(Slots(model, 2, capacity=min(30, limit)), rows, own)
    for row, line in enumerate(own):
        assert [new.token for new in found[row]] == alone(model, rows[row], line)[0], f"row {row}"


def test_a_row_that_is_retired_leaves_the_others_as_they_are() -> None:
    model = specimen("hybrid")
    rows, own = prompts(7, model), settings(7)
    free = served(Slots(model, 3, capacity=40), rows, own)
    cut = {0: 6, 2: 1, 6: 13}
    found = served(Slots(model, 3, capacity=40), rows, own, retired=cut)
    for row, tokens in found.items():
        assert tokens == free[row][: cut.get(row)]


def test_a_free_place_never_holds_more_tokens_than_the_longest_row() -> None:
    slots = Slots(specimen("attention"), 2, capacity=90)
    for prompt, length in ((1, 40), (3, 25)):
        place = slots.admit(Row(tuple(range(prompt))), RowSettings(length))
        slots.step()  # chooses a token after the prompt, and reads none
        while slots.live:
            slots.step()
            assert slots._session is not None
            own, other = (int(slots._session.state.clock.seen[at]) for at in (place, 1 - place))
            assert other <= own or not slots.live


def test_a_tape_goes_on_while_rows_come_and_go() -> None:
    model = specimen("hybrid")
    slots, seen = Slots(model, 3, capacity=400), set[int]()
    rows, own = prompts(30, model), [RowSettings(24, row=row) for row in range(30)]
    found, waiting, addresses = dict[int, list[int]](), list(range(30)), set[int]()
    for step in range(160):
        if waiting and slots.free and step % 8 == 0:
            row = waiting.pop(0)
            slots.admit(rows[row], own[row])
        for new in slots.step():
            found.setdefault(new.row, []).append(new.token)
        if step > 40:  # three rows were admitted, and the tape was made
            assert slots.by_tape and slots._session is not None
            seen.add(id(slots._session._steps._tape))
            addresses |= {layer.keys.data_ptr() for layer in _attention(slots)}
    assert len(seen) == 1 and len(addresses) == 4 and len(found) > 12
    for row in (0, 7, 12):
        assert found[row] == alone(model, rows[row], own[row])[0][: len(found[row])]


def _attention(slots: Slots) -> list[Any]:
    assert slots._session is not None
    state: Any = slots._session.state
    return [block.layers[place] for block in state.stack.layers for place in (0, 1)]


def test_a_compiled_step_serves_rows_that_come_and_go_and_is_compiled_once() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    model = decoder(ROPE, WINDOW, "gru").eval()
    counter = CompileCounterWithBackend("aot_eager")
    slots = Slots(model, 2, capacity=40, compiled=CompiledStep(model, backend=counter))  # type: ignore[arg-type]
    rows, own = prompts(5, model), settings(5)
    found = served(slots, rows, own)
    assert counter.frame_count == 1
    for row, line in enumerate(own):
        assert [new.token for new in found[row]] == alone(model, rows[row], line)[0]


def test_rows_read_again_past_a_length_do_so_among_rows_that_come_and_go() -> None:
    for position in (LONGROPE, {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 2.0, "original_length": 8}}):
        model = decoder({**ROPE, "position": position}, MLP).eval()
        rows, own = prompts(6, model), [RowSettings(6 + row, row=row) for row in range(6)]
        found = served(Slots(model, 3, capacity=32), rows, own)
        for row, line in enumerate(own):
            assert [new.token for new in found[row]] == alone(model, rows[row], line)[0]


def test_an_encoder_decoder_admits_sources_of_any_length() -> None:
    mixers = [ROPE, {"kind": "cross_attention", "n_heads": 2}]
    model = build({"kind": "encoder_decoder", "vocab_size": 11, "d_model": 8, "embedding": {"std": 1.0},
                   "encoder": {"kind": "encoder", "vocab_size": 11, "d_model": 8, "embedding": {"std": 1.0},
                               "blocks": [{"kind": "pre", "layers": [{**ROPE, "mask": "bidirectional"}]}]},
                   "blocks": [{"kind": "pre", "layers": mixers}]}).eval()
    rows = [Row((row, 1), (4, 5, 6, 7, 8, 9)[: 1 + row]) for row in (2, 0, 5, 1, 4)]
    own = [RowSettings(9, row=row) for row in range(5)]
    found = served(Slots(model, 2, capacity=20), rows, own, every=3)
    for row, line in enumerate(own):
        assert [new.token for new in found[row]] == alone(model, rows[row], line)[0]


def test_stops_text_and_unknown_ids_are_each_row_s_own() -> None:
    table = [[0.001] * 260 for _ in range(260)]
    for before, after in zip("abcdef", "bcdefa", strict=True):
        table[ord(before)][ord(after)] = 0.9
        table[ord(before)][259] = 0.95  # an id that the tokenizer lacks
    tokenizer = ByteTokenizer()
    slots = Slots(Bigram(table).eval(), 3, capacity=20, tokenizer=tokenizer)
    own = [RowSettings(9, ending=Ending(strings=("de",)), row=0), RowSettings(9, ending=Ending(tokens=(97,)), row=1),
           RowSettings(4, row=2)]
    slots.admit_all([tokenizer.encode("a"), tokenizer.encode("c"), tokenizer.encode("e")], own)
    found = [new for _ in range(9) for new in slots.step()]
    assert ["".join(new.text or "" for new in found if new.row == row) for row in range(3)] == ["bc", "defa", "fabc"]
    assert [(new.row, new.finish) for new in found if new.finish] == [(0, "stop_string"), (1, "stop_token"),
                                                                     (2, "length")]


def test_a_row_that_leaves_can_be_gone_on_with() -> None:
    model = specimen("hybrid")
    slots = Slots(model, 2, capacity=40)
    slots.admit([1, 2], RowSettings(20, row=1))
    slot = slots.admit([3, 4, 5], RowSettings(20))
    first = [new.token for _ in range(6) for new in slots.step() if new.row == 0]
    begun = slots.leave(slot)
    assert begun is not None and begun.tokens == (3, 4, 5, *first[:5])
    other = Slots(model, 1, capacity=40)
    other.admit((*begun.tokens, first[5]), RowSettings(8), begun)
    rest = [new.token for _ in range(8) for new in other.step()]
    assert [*first, *rest] == alone(model, Row((3, 4, 5)), RowSettings(14))[0]


def test_slots_are_closed_up_without_a_trace() -> None:
    model = specimen("hybrid")
    rows, own = prompts(4, model), [RowSettings(6 + 4 * row, row=row) for row in range(4)]
    slots = Slots(model, 4, capacity=40)
    slots.admit_all(rows, own)
    found: dict[int, list[int]] = {row: [] for row in range(4)}
    while slots.live:
        for new in slots.step():
            found[new.row].append(new.token)
        slots.close_up()
    assert slots.size == 1
    for row, line in enumerate(own):
        assert found[row] == alone(model, rows[row], line)[0]


def test_what_cannot_be_admitted_is_refused_before_anything_runs() -> None:
    model = Bigram([[0.5, 0.5], [0.5, 0.5]]).eval()
    slots = Slots(model, 1, capacity=6)
    for prompt, own, message in (
            ([0] * 4, RowSettings(4, row=3), r"rows\[3\]: 4 tokens of prompt and 4 new ones are 7 to read, and a slot "
                                             r"has room for 6\. Shorten the prompt, lower max_new_tokens"),
            ([0, 7], RowSettings(1), r"rows\[0\]\[1\]: id 7 is outside the vocabulary of 2 ids"),
            ([], RowSettings(1), r"rows\[0\]: an empty prompt, and no start token"),
            ([0], RowSettings(0), r"max_new_tokens: 0 is out of range\. Give 1 or more"),
            ([0], RowSettings(1, ending=Ending(strings=("x",))), r"ending\.strings: stop strings need a tokenizer"),
            ([0], RowSettings(1, ending=Ending(tokens=(5,))), r"ending\.tokens\[0\]: id 5 is outside the vocabulary")):
        with pytest.raises(InputError, match=message):
            slots.admit(prompt, own)
    with pytest.raises(InputError, match=r"settings: 2 settings for 1 rows\. Give settings for each row"):
        slots.admit_all([[0]], [RowSettings(1), RowSettings(1)])
    assert model.calls == []
    slots.admit([0], RowSettings(2))
    with pytest.raises(InputError, match=r"rows: 1 rows, and 0 of 1 slots are free\. Wait until rows end"):
        slots.admit([0], RowSettings(1))
    with pytest.raises(InputError, match=r"slot: there is no row in slot 2\. Name one of the slots with rows: \[0\]"):
        slots.retire(2)


def test_slots_want_a_model_that_can_decode_and_is_not_training() -> None:
    model = Bigram([[1.0]])
    with pytest.raises(InputError, match=r"model: the model is in training mode, .* Call model\.eval\(\) first"):
        Slots(model, 1, capacity=4)
    with pytest.raises(InputError, match=r"size: 0 is out of range\. Give 1 or more"):
        Slots(model.eval(), 0, capacity=4)
    both_ways = copy.deepcopy(decoder({"kind": "attention", "n_heads": 2}).eval())
    from seeing_ahead import seeing_ahead
    with pytest.raises(UnsupportedError, match=r"decoding needs probabilities of the next token"):
        Slots(seeing_ahead(both_ways).eval(), 1, capacity=4).admit([1], RowSettings(1))
    with pytest.raises(FailedError, match=r"rows\[4\]: the model returned a logit of nan"):
        slots = Slots(Bigram([[math.nan, 1.0], [0.5, 0.5]]).eval(), 2, capacity=4)
        slots.admit([0], RowSettings(1, row=4))
        slots.step()

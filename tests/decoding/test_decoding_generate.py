"""Generation through the state equals generation by full recomputation, for every kind of model."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from decoding.small_models import Bigram, decoder, kinds, reseeded
from seeing_ahead import seeing_ahead
from weft.core.errors import FailedError, InputError, UnsupportedError
from weft.core.model import EncoderInputs, LanguageModel
from weft.core.span import Span
from weft.decoding import GREEDY, Ending, Row, Sampling, generate, stream
from weft.tokenizers import ByteTokenizer

NEW = 10
KINDS = kinds()
CYCLE = [[0.1, 0.7, 0.2], [0.2, 0.1, 0.7], [0.6, 0.3, 0.1]]


def prompts(model: LanguageModel) -> list[Row]:
    """Ragged rows, with sources where the model reads them. The longest pass windows and LongRoPE's first length."""
    generator = reseeded(3)

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(model.vocab_size, (length,), generator=generator).tolist())

    lengths = (4, 1, 7, 2, 4)
    return [Row(ids(length), ids(length + 1) if model.takes_source else None) for length in lengths]


@torch.no_grad()
def recomputed(model: LanguageModel, row: Row, steps: int) -> tuple[list[int], list[float]]:
    """Greedy decoding that runs the whole row again for every token, alone and without a state."""
    model.eval()
    memory = None
    if row.source is not None:
        memory = model.encode(EncoderInputs(tokens=torch.tensor([row.source])))
    tokens, values = list(row.tokens), []
    for _ in range(steps):
        out = model(torch.tensor([tokens]), None, Span(memory=memory))
        best = out.y[0, -1].log_softmax(-1).max(-1)
        tokens.append(int(best.indices))
        values.append(float(best.values))
    return tokens[len(row.tokens) :], values


@pytest.mark.parametrize("name", sorted(KINDS))
def test_greedy_equals_full_recomputation(name: str) -> None:
    model = KINDS[name]
    rows = prompts(model)
    steps = NEW if model.limit() is None else min(NEW, model.limit() - 8)
    found = generate(model, rows, max_new_tokens=steps, log_probs=True)
    for row, result in zip(rows, found.rows, strict=True):
        tokens, values = recomputed(model, row, steps)
        assert list(result.tokens) == tokens
        assert result.log_probs == pytest.approx(values, rel=1e-9, abs=1e-9)  # float64 through a dozen layers


@pytest.mark.parametrize("name", sorted(KINDS))
def test_rows_that_stop_leave_the_others_as_they_are(name: str) -> None:
    """Stop tokens end rows at different steps: they stand still, then leave the batch; the others do not notice."""
    model = KINDS[name]
    rows = prompts(model)
    free = generate(model, rows, max_new_tokens=8)
    stops = {row.tokens[2] for row in free.rows[:1]} | {free.rows[3].tokens[0]}
    found = generate(model, rows, max_new_tokens=8, ending=Ending(tokens=tuple(stops)))
    for result, whole in zip(found.rows, free.rows, strict=True):
        first = next((place for place, token in enumerate(whole.tokens) if token in stops), None)
        assert result.tokens == (whole.tokens if first is None else whole.tokens[: first + 1])
        assert result.finish == ("length" if first is None else "stop_token")


def test_the_models_here_do_not_all_say_the_same_thing() -> None:
    """A model stuck on one token would pass the tests above for the wrong reason."""
    for name in ("rope", "window", "lstm", "s4d", "longrope", "hybrid"):
        found = generate(KINDS[name], prompts(KINDS[name]), max_new_tokens=NEW)
        assert len({token for row in found.rows for token in row.tokens}) > 2
        assert len({row.tokens for row in found.rows}) > 1


def test_level_rows_equal_ragged_ones_without_a_mask() -> None:
    model = KINDS["rope"]
    rows = prompts(model)
    level = [rows[0], rows[4]]
    both = generate(model, level, max_new_tokens=NEW, log_probs=True)
    mixed = generate(model, rows, max_new_tokens=NEW, log_probs=True)
    for result, other in zip(both.rows, (mixed.rows[0], mixed.rows[4]), strict=True):
        assert result.tokens == other.tokens
        assert result.log_probs == pytest.approx(other.log_probs, rel=1e-10)


def test_samples_depend_on_seed_and_row_not_on_neighbours_or_batches() -> None:
    model = KINDS["hybrid"]
    rows = prompts(model)
    sampling = Sampling(temperature=1.5)
    whole = generate(model, rows, max_new_tokens=20, sampling=sampling, seed=5)
    others = [rows[0], Row((7, 7, 7, 7, 7, 7)), rows[2], Row((1,)), rows[4]]
    changed = generate(model, others, max_new_tokens=20, sampling=sampling, seed=5)
    assert [changed.rows[place] for place in (0, 2, 4)] == [whole.rows[place] for place in (0, 2, 4)]
    assert generate(model, rows, max_new_tokens=20, sampling=sampling, seed=5, batch_size=2) == whole
    assert generate(model, rows, max_new_tokens=20, sampling=sampling, seed=6) != whole
    same = generate(model, [rows[0], rows[0]], max_new_tokens=20, sampling=sampling, seed=5)
    assert same.rows[0].tokens != same.rows[1].tokens


def test_samples_have_the_models_frequencies() -> None:
    model = Bigram(CYCLE)
    found = generate(model, [[0]] * 2000, max_new_tokens=1, sampling=Sampling(), seed=1)
    counts = [sum(row.tokens[0] == token for row in found.rows) / 2000 for token in range(3)]
    assert counts == pytest.approx(CYCLE[0], abs=4 * math.sqrt(0.25 / 2000))  # four standard errors at most


def test_log_probs_are_the_models_own_whatever_the_sampling() -> None:
    found = generate(Bigram(CYCLE), [[0]], max_new_tokens=6, log_probs=True, seed=2,
                     sampling=Sampling(temperature=3.0, top_k=2, repetition_penalty=1.7))
    row = (0, *found.rows[0].tokens)
    wanted = [math.log(CYCLE[before][after]) for before, after in pairwise(row)]
    assert found.rows[0].log_probs == pytest.approx(wanted, rel=1e-12)


def test_a_repetition_penalty_turns_the_row_away_from_what_it_has() -> None:
    model = Bigram([[0.5, 0.3, 0.2]] * 3)
    assert generate(model, [[0]], max_new_tokens=4).rows[0].tokens == (0, 0, 0, 0)
    # log 0.5 * 2 = log 0.25 < log 0.3; then log 0.09 < log 0.2; with all seen the order is the model's again.
    punished = generate(model, [[0]], max_new_tokens=4, sampling=Sampling(temperature=0, repetition_penalty=2.0))
    assert punished.rows[0].tokens == (1, 0, 0, 0)
    strong = generate(model, [[0]], max_new_tokens=4, sampling=Sampling(temperature=0, repetition_penalty=3.0))
    assert strong.rows[0].tokens == (1, 2, 0, 0)


def test_the_penalty_follows_its_row_when_others_leave() -> None:
    model, rows = KINDS["rope"], prompts(KINDS["rope"])
    options = {"max_new_tokens": 8, "sampling": Sampling(temperature=0, repetition_penalty=1.5)}
    free = generate(model, rows, **options)
    ending = Ending(tokens=(free.rows[0].tokens[1],))
    together = generate(model, rows, ending=ending, **options)
    assert len({len(row.tokens) for row in together.rows}) > 1
    for row, result in zip(rows, together.rows, strict=True):
        assert generate(model, [row], ending=ending, **options).rows[0] == result


def test_nothing_is_computed_for_no_tokens() -> None:
    model = Bigram(CYCLE)
    found = generate(model, [[0], [1, 2]], max_new_tokens=0, tokenizer=ByteTokenizer(), log_probs=True)
    assert found.to_json() == {"rows": [{"tokens": [], "text": "", "log_probs": [], "finish": "length"}] * 2}
    assert model.calls == []


def test_finished_rows_leave_the_batch() -> None:
    """From 1 and 2 the way leads to 2 at once or after one step; from 0 never."""
    model = Bigram([[0.8, 0.1, 0.1], [0.1, 0.2, 0.7], [0.1, 0.1, 0.8]])
    found = generate(model, [[1], [0], [1], [0]], max_new_tokens=5, ending=Ending(tokens=(2,)))
    assert [row.tokens for row in found.rows] == [(2,), (0,) * 5, (2,), (0,) * 5]
    assert model.calls == [4, 2, 2, 2, 2]


def test_kernels_are_told_what_they_may_rely_on() -> None:
    def facts(model: Bigram) -> list[tuple[bool, int | None, bool, bool]]:
        return [(span.fresh, span.bound, span.uniform, span.full) for span in model.spans]

    level, mixed = Bigram(CYCLE), Bigram(CYCLE)
    generate(level, [[0, 1], [2, 1]], max_new_tokens=3)
    assert facts(level) == [(True, 2, True, True), (False, 3, True, True), (False, 4, True, True)]
    generate(mixed, [[0, 1], [2]], max_new_tokens=2)
    assert facts(mixed) == [(True, 2, False, False), (False, 3, False, True)]
    assert mixed.spans[0].count.tolist() == [2, 1]
    # One of five rows ends: it begins again and runs along, and the rows are no longer level.
    standing = Bigram([[0.8, 0.1, 0.1], [0.1, 0.2, 0.7], [0.1, 0.1, 0.8]])
    generate(standing, [[0], [0], [1], [0], [0]], max_new_tokens=3, ending=Ending(tokens=(2,)))
    assert facts(standing) == [(True, 1, True, True), (False, 2, False, True), (False, 3, False, True)]
    assert standing.calls == [5, 5, 5]


def test_empty_prompts_begin_with_the_start_token() -> None:
    model = Bigram(CYCLE)
    assert generate(model, [[], [1]], max_new_tokens=3, start=1) == generate(model, [[1], [1]], max_new_tokens=3)
    with pytest.raises(InputError, match=r"rows\[1\]: an empty prompt, and no start token\. Give at least one id"):
        generate(model, [[0], []], max_new_tokens=3)


def spelling(text: str) -> LanguageModel:
    """A model that spells ``text`` (distinct characters) in a circle."""
    table = [[0.001] * 257 for _ in range(257)]
    for before, after in zip(text, text[1:] + text[0], strict=True):
        table[ord(before)][ord(after)] = 0.9
    return Bigram(table)


def test_stop_strings_end_a_row_across_tokens_and_leave_no_trace() -> None:
    model, tokenizer = spelling("abcdef"), ByteTokenizer()
    options = {"max_new_tokens": 20, "ending": Ending(strings=("def", "zz")), "tokenizer": tokenizer}
    pieces = list(stream(model, [tokenizer.encode("a")], **options))
    assert [piece.text for piece in pieces] == ["b", "c", "", "", ""]
    assert pieces[-1].finish == "stop_string"
    found = generate(model, [tokenizer.encode("a"), tokenizer.encode("d")], **options)
    assert [(row.text, row.finish) for row in found.rows] == [("bc", "stop_string"), ("efabc", "stop_string")]
    assert tokenizer.decode(found.rows[0].tokens) == "bcdef"


def test_what_is_held_back_is_given_when_the_row_ends() -> None:
    model, tokenizer = spelling("abcdef"), ByteTokenizer()
    found = generate(model, [tokenizer.encode("a")], max_new_tokens=4, ending=Ending(strings=("dex",)),
                     tokenizer=tokenizer)
    assert (found.rows[0].text, found.rows[0].finish) == ("bcde", "length")


def test_a_training_model_is_put_back_and_can_train_after_generation() -> None:
    model = decoder({"kind": "attention", "n_heads": 2, "position": "rope"}, {"kind": "mlp", "d_ff": 12},
                    embedding={"std": 1.0, "dropout": 0.5})
    model.train()
    model.stack.eval()
    first = generate(model, [[1, 2]], max_new_tokens=8)
    assert first == generate(model, [[1, 2]], max_new_tokens=8)  # no dropout
    assert model.training and not model.stack.training
    model(torch.tensor([[1, 2, 3]])).y.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_more_tokens_than_positions_are_refused_before_anything_runs() -> None:
    model = decoder("lstm", position={"kind": "learned", "max_length": 8})
    assert len(generate(model, [[1] * 6], max_new_tokens=3).rows[0].tokens) == 3
    with pytest.raises(InputError, match=r"rows\[1\]: 6 tokens of prompt and 4 new ones are 9 to read, and this model "
                                         r"has positions for 8 tokens\. Shorten the prompt or lower max_new_tokens"):
        stream(model, [[1], [1] * 6], max_new_tokens=4)


def test_models_that_cannot_generate_say_so() -> None:
    both_ways = seeing_ahead(decoder({"kind": "attention", "n_heads": 2}))
    with pytest.raises(UnsupportedError, match=r"decoding needs probabilities of the next token.*causal masks"):
        generate(both_ways, [[1]], max_new_tokens=1)
    impossible = Bigram([[0.0, 1.0], [0.0, 0.0]])
    with pytest.raises(FailedError, match=r"rows\[0\]: the model assigns probability zero to every token.*smoothing"):
        generate(impossible, [[0]], max_new_tokens=2)
    broken = Bigram([[math.nan, 1.0], [0.5, 0.5]])
    with pytest.raises(FailedError, match=r"rows\[1\]: the model returned a logit of nan, so no token can be chosen"):
        generate(broken, [[1], [0]], max_new_tokens=1)


@pytest.mark.parametrize(("options", "message"), [
    ({"max_new_tokens": -1}, r"max_new_tokens: -1 is negative\. Give 0 or more"),
    ({"batch_size": 0}, r"batch_size: 0 is out of range\. Give 1 or more"),
    ({"start": 3}, r"start: id 3 is outside the vocabulary of 3 ids\. Give ids from 0 to 2"),
    ({"ending": Ending(tokens=(0, 9))}, r"ending\.tokens\[1\]: id 9 is outside the vocabulary of 3 ids"),
    ({"ending": Ending(strings=("x",))}, r"ending\.strings: stop strings need a tokenizer.*Give the tokenizer"),
    ({"ending": Ending(strings=("",)), "tokenizer": ByteTokenizer()}, r"ending\.strings: a stop string is empty"),
])
def test_options_out_of_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate(Bigram(CYCLE), [[0]], **{"max_new_tokens": 1, **options})


def test_json_leaves_out_what_was_not_asked_for() -> None:
    found = generate(Bigram(CYCLE), [[0]], max_new_tokens=2, sampling=GREEDY)
    assert found.to_json() == {"rows": [{"tokens": [1, 2], "finish": "length"}]}


def test_an_encoder_decoder_tells_of_ids_its_encoder_does_not_know() -> None:
    model = KINDS["encoder_decoder-0"]
    with pytest.raises(InputError, match=r"rows\[0\]\.source\[\d+\]: id 99 is outside the vocabulary of"):
        generate(model, [Row((1,), (99,))], max_new_tokens=1)

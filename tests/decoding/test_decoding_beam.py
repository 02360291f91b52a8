"""Beam search against exhaustive search and against a plain one without a state."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from decoding.small_models import Bigram, decoder, kinds, reseeded, translator
from weft.core.errors import FailedError, InputError
from weft.core.model import EncoderInputs, LanguageModel
from weft.core.span import Span
from weft.decoding import Hypothesis, LengthFormula, Row, beam_search, generate
from weft.decoding.session import Session
from weft.tokenizers import ByteTokenizer

KINDS = {name: model for name, model in kinds().items() if model.limit() is None}
STEPS = 5


def small(kind: str) -> LanguageModel:
    """Three tokens, so that every continuation can be listed."""
    if kind == "encoder_decoder":
        return translator(3)
    layers = {"attention": [{"kind": "attention", "n_heads": 2, "position": "rope"}], "lstm": ["lstm"]}[kind]
    return decoder(*layers, vocab_size=3)


@torch.no_grad()
def log_prob(model: LanguageModel, row: Row, new: tuple[int, ...]) -> float:
    """Of a continuation, by one call without a state."""
    tokens = torch.tensor([[*row.tokens, *new]])
    memory = None if row.source is None else model.encode(EncoderInputs(tokens=torch.tensor([row.source])))
    span = Span(memory=memory)
    values = model.eval()(tokens, None, span).y[0].log_softmax(-1)
    return sum(float(values[len(row.tokens) + place - 1, token]) for place, token in enumerate(new))


def divisor(length: int, penalty: float, formula: str) -> float:
    """Wu et al. 2016, equation 14, and the plain power."""
    return float(((5 + length) ** penalty / 6**penalty) if formula == "gnmt" else length**penalty)


def exhaustive(model: LanguageModel, row: Row, steps: int, stop: int, penalty: float,
               formula: str) -> list[tuple[int, ...]]:
    """Every continuation that stops, or is of full length, from the best to the worst."""
    rest = [token for token in range(model.vocab_size) if token != stop]
    bodies = [body for length in range(steps) for body in itertools.product(rest, repeat=length)]
    found = [(*body, stop) for body in bodies] + list(itertools.product(rest, repeat=steps))
    return sorted(found, key=lambda new: -log_prob(model, row, new) / divisor(len(new), penalty, formula))


@pytest.mark.parametrize("kind", ["attention", "lstm", "encoder_decoder"])
@pytest.mark.parametrize(("penalty", "formula"), [(0.0, "power"), (0.7, "power"), (1.0, "power"), (0.7, "gnmt"),
                                                  (2.5, "gnmt")])
def test_enough_beams_are_exhaustive(kind: str, penalty: float, formula: LengthFormula) -> None:
    model = small(kind)
    sources = [(4, 1, 3), (2,)] if model.takes_source else [None, None]
    rows = [Row((0, 2), sources[0]), Row((1,), sources[1])]
    found = beam_search(model, rows, max_new_tokens=3, beams=40, length_penalty=penalty, length_formula=formula,
                        stop=[2])
    for row, hypotheses in zip(rows, found.rows, strict=True):
        wanted = exhaustive(model, row, 3, 2, penalty, formula)
        assert [one.tokens for one in hypotheses] == wanted[:40]
        assert len(hypotheses) == 1 + 2 + 4 + 8
        for one in hypotheses:
            assert one.log_prob == pytest.approx(log_prob(model, row, one.tokens), rel=1e-10)
            assert one.score == pytest.approx(one.log_prob / divisor(len(one.tokens), penalty, formula), rel=1e-12)
            assert one.stopped == (one.tokens[-1] == 2)


@torch.no_grad()
def plain_search(model: LanguageModel, row: Row, beams: int, stop: int, penalty: float) -> list[Hypothesis]:
    """The same rule, written without batches, states or early ends."""
    memory = None if row.source is None else model.encode(EncoderInputs(tokens=torch.tensor([row.source])))
    span = Span(memory=memory)
    live: dict[tuple[int, ...], float] = {(): 0.0}
    done: dict[tuple[int, ...], float] = {}
    for _ in range(STEPS):
        reached: dict[tuple[int, ...], float] = {}
        for new, value in live.items():
            last = model.eval()(torch.tensor([[*row.tokens, *new]]), None, span).y[0, -1].log_softmax(-1).tolist()
            reached |= {(*new, token): value + last[token] for token in range(model.vocab_size)}
        ranked = sorted(reached, key=reached.__getitem__, reverse=True)
        done |= {new: reached[new] for new in ranked[:beams] if new[-1] == stop}
        live = {new: reached[new] for new in [new for new in ranked if new[-1] != stop][:beams]}
    found = done | live
    best = sorted(found, key=lambda new: -found[new] / len(new) ** penalty)[:beams]
    return [Hypothesis(new, found[new], found[new] / len(new) ** penalty, new[-1] == stop) for new in best]


@pytest.mark.parametrize("name", ["rope", "window", "hybrid", "longrope", "dynamic", "ngram-4", "feedforward-0",
                                  "encoder_decoder-0"])
def test_states_follow_their_beams(name: str) -> None:
    model = KINDS[name]
    generator = reseeded(1)
    rows = [Row(tuple(torch.randint(model.vocab_size, (length,), generator=generator).tolist()),
                (3, 1, 4) if model.takes_source else None) for length in (6, 2)]
    stop = generate(model, rows, max_new_tokens=3).rows[0].tokens[2]
    found = beam_search(model, rows, max_new_tokens=STEPS, beams=3, length_penalty=0.6, stop=[stop])
    for row, hypotheses in zip(rows, found.rows, strict=True):
        wanted = plain_search(model, row, 3, stop, 0.6)
        assert [one.tokens for one in hypotheses] == [one.tokens for one in wanted]
        assert [one.score for one in hypotheses] == pytest.approx([one.score for one in wanted], rel=1e-9)


@pytest.mark.parametrize("name", ["rope", "encoder_decoder-0"])
def test_one_beam_is_greedy(name: str) -> None:
    model = KINDS[name]
    rows = [Row((1, 2, 3), (5, 1) if model.takes_source else None), Row((4,), (3,) if model.takes_source else None)]
    found = beam_search(model, rows, max_new_tokens=7, beams=1)
    greedy = generate(model, rows, max_new_tokens=7, log_probs=True)
    for row, other in zip(found.rows, greedy.rows, strict=True):
        assert row[0].tokens == other.tokens and other.log_probs is not None
        assert row[0].log_prob == pytest.approx(sum(other.log_probs), rel=1e-10)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_rows_are_searched_in_batches_of_similar_length_with_the_same_results(size: int) -> None:
    model = translator(7)
    rows = [Row((0,), tuple(range(length))) for length in (2, 7, 1, 4, 4)]
    most = [3, 5, 0, 4, 2]
    found = beam_search(model, rows, max_new_tokens=most, beams=3, stop=[6], batch_size=size)
    for row, limit, hypotheses in zip(rows, most, found.rows, strict=True):
        alone = beam_search(model, [row], max_new_tokens=limit, beams=3, stop=[6]).rows[0]
        assert [one.tokens for one in hypotheses] == [one.tokens for one in alone]
        assert [one.log_prob for one in hypotheses] == pytest.approx([one.log_prob for one in alone], rel=1e-10)
        assert all(len(one.tokens) <= limit for one in hypotheses)


def test_beams_see_past_what_greed_takes() -> None:
    """From 0, token 1 looks best (0.6) but leads to even odds; 2 (0.4) leads to 0 for certain."""
    model = Bigram([[0.0, 0.6, 0.4], [0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    assert generate(model, [[0]], max_new_tokens=2).rows[0].tokens == (1, 0)
    best = beam_search(model, [[0]], max_new_tokens=2, beams=2).rows[0][0]
    assert best.tokens == (2, 0) and best.log_prob == pytest.approx(math.log(0.4), rel=1e-12)


def test_a_search_ends_when_nothing_can_overtake() -> None:
    model = Bigram([[0.01, 0.01, 0.98], [0.3, 0.3, 0.4], [1 / 3] * 3])
    found = beam_search(model, [[0]], max_new_tokens=50, beams=1, length_penalty=0.0, stop=[2])
    assert found.rows[0] == (Hypothesis((2,), pytest.approx(math.log(0.98)), pytest.approx(math.log(0.98)), True),)
    assert len(model.calls) == 1


def test_ids_that_the_tokenizer_lacks_are_never_chosen() -> None:
    """A vocabulary of 300 ids, rounded up from the 257 of bytes and the end symbol: likely padding is passed over."""
    tokenizer = ByteTokenizer()
    odds = [0.0] * 300
    odds[299], odds[65], odds[66] = 0.7, 0.2, 0.1
    model = Bigram([odds] * 300)
    assert beam_search(model, [[0]], max_new_tokens=2, beams=2).rows[0][0].tokens == (299, 299)
    found = beam_search(model, [[0]], max_new_tokens=2, beams=2, tokenizer=tokenizer).rows[0]
    assert [one.tokens for one in found] == [(65, 65), (65, 66)]
    assert found[0].log_prob == pytest.approx(2 * math.log(0.2))
    assert generate(model, [[0]], max_new_tokens=2, tokenizer=tokenizer).rows[0].tokens == (65, 65)


def test_a_longer_hypothesis_may_overtake_a_finished_one() -> None:
    """The mean log-probability of 1 1 1 1 is (log 0.48 + 3 log 0.98) / 4, above log 0.51 of stopping at once."""
    model = Bigram([[0.01, 0.48, 0.51], [0.01, 0.98, 0.01], [1 / 3] * 3])
    best = beam_search(model, [[0]], max_new_tokens=4, beams=1, length_penalty=1.0, stop=[2]).rows[0][0]
    assert best.tokens == (1, 1, 1, 1)
    assert best.score == pytest.approx((math.log(0.48) + 3 * math.log(0.98)) / 4, rel=1e-12)


def test_dead_ends_are_left_out() -> None:
    model = Bigram([[0.0, 0.9, 0.1], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert [one.tokens for one in beam_search(model, [[0]], max_new_tokens=3, beams=2).rows[0]] == [(2, 2, 2)]
    with pytest.raises(FailedError, match=r"rows\[0\]: the model assigns probability zero to every continuation"):
        beam_search(model, [[1]], max_new_tokens=3, beams=2)


def test_nothing_new_is_one_empty_hypothesis_and_json_is_plain() -> None:
    found = beam_search(Bigram([[1.0]]), [[0]], max_new_tokens=0)
    assert found.to_json() == {"rows": [{"hypotheses": [
        {"tokens": [], "log_prob": 0.0, "score": 0.0, "stopped": False}]}]}


def test_hypotheses_have_their_text_with_a_tokenizer() -> None:
    table = [[0.001] * 260 for _ in range(260)]
    for before, after in zip(b"caf\xc3\xa9", b"af\xc3\xa9c", strict=True):
        table[before][after] = 0.9
    tokenizer = ByteTokenizer()
    found = beam_search(Bigram(table), [tokenizer.encode("c")], max_new_tokens=4, beams=2, tokenizer=tokenizer)
    best, *_ = found.rows[0]
    assert best.text == "afé"
    assert "text" not in beam_search(Bigram(table), [[1]], max_new_tokens=1).to_json()["rows"][0]["hypotheses"][0]


def test_a_search_goes_on_by_tape_while_its_hypotheses_change() -> None:
    """Rows that change places are put there in place, so the tensors stay where they are."""
    model = decoder({"kind": "attention", "n_heads": 2, "position": "rope"}, "lstm", {"kind": "mlp", "d_ff": 12}).eval()
    session = Session(model, [Row((1, 2)), Row((1, 2)), Row((3, 4))], max_new_tokens=40)
    tokens = [(1, 2), (1, 2), (3, 4)]
    for step in range(16):
        order = [[0, 1, 2], [1, 1, 2], [0, 2, 2], [2, 0, 1]][step % 4]
        session.select(torch.tensor(order))
        new = [(step + 3 * place) % 11 for place in range(3)]
        session.advance(torch.tensor(new))
        tokens = [(*tokens[row], token) for row, token in zip(order, new, strict=True)]
    assert session.by_tape
    for place, row in enumerate(tokens):
        torch.testing.assert_close(session.logits[place], model(torch.tensor([row])).y[0, -1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("options", "message"), [
    ({"beams": 0}, r"beams: 0 is out of range\. Give 1 or more"),
    ({"length_penalty": -1.0}, r"length_penalty: -1\.0 is out of range\. Give 0 to 20"),
    ({"length_formula": "wu"}, r"length_formula: unknown formula 'wu'\. Give 'power' or 'gnmt'"),
    ({"batch_size": 0}, r"batch_size: 0 is out of range\. Give 1 or more"),
    ({"max_new_tokens": [1, 2]}, r"max_new_tokens: 2 numbers for 1 rows\. Give one for each row, or one for all"),
    ({"stop": [5]}, r"stop\[0\]: id 5 is outside the vocabulary of 1 ids"),
])
def test_options_out_of_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        beam_search(Bigram([[1.0]]), [[0]], **{"max_new_tokens": 1, **options})

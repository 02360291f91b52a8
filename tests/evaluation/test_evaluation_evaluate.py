"""Perplexity and bits per byte: by hand, and against scoring token by token."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from decoding.small_models import VOCAB, Bigram, decoder, kinds, reseeded
from seeing_ahead import seeing_ahead
from weft.core.errors import DataError, FailedError, InputError, UnsupportedError
from weft.core.model import LanguageModel
from weft.core.span import Span
from weft.data import Batch, Corpus, Document, EvaluationWindows, TokenStream, encode_corpus
from weft.evaluation import Evaluation, evaluate
from weft.evaluation.evaluate import _sum
from weft.tokenizers import ByteTokenizer

KINDS = {name: model for name, model in kinds().items() if not model.takes_source}
LENGTHS = (7, 1, 12, 4)


def stream_of(lengths: tuple[int, ...] = LENGTHS, *, scored: bool = True, vocab_size: int = VOCAB) -> TokenStream:
    """Documents of random ids, id 0 between them; a token stands for as many bytes as its id says."""
    generator = reseeded(7)
    pieces = [[0, *torch.randint(1, vocab_size, (length,), generator=generator).tolist()] for length in lengths]
    tokens = [token for piece in pieces for token in piece] + ([0] if scored else [])
    begins = [place == 0 for piece in pieces for place in range(len(piece))] + ([True] if scored else [])
    return TokenStream(np.array(tokens, dtype=np.uint8), np.array(begins), np.array(tokens, dtype=np.uint8), scored,
                       vocab_size, "drawn", "0" * 64, "1" * 64)


@torch.no_grad()
def reference(model: LanguageModel, stream: TokenStream, context: int, stride: int, fenced: bool) -> Evaluation:
    """Each target by a call of its own, from exactly the tokens that its window (and document) shows it."""
    model.eval()
    tokens, end = stream.tokens.astype(int).tolist(), len(stream) - 1
    length = min(context, end)
    last_targets = [*range(length, end, stride), end]
    nats, count, size, done = 0.0, 0, 0, 0
    for last in last_targets:
        for target in range(done + 1, last + 1):
            first = last - length
            document = max(place for place in range(target) if stream.begins[place] or place == 0)
            if stream.begins[target] and not stream.begins_scored:
                continue
            first = max(first, document) if fenced else first
            whole = declared(stream, document, last - length, last, fenced)
            y = model(torch.tensor([tokens[first:target]]), None, Span(horizon=torch.tensor([whole]))).y
            nats -= float(y[0, -1].log_softmax(-1)[tokens[target]])
            count, size = count + 1, size + int(stream.byte_lengths[target])
        done = last
    return Evaluation(nats, count, size, 0, None)


def declared(stream: TokenStream, document: int, first: int, last: int, fenced: bool) -> int:
    """Inputs that a target's document has in its window: what LongRoPE's rotation depends on."""
    if not fenced:
        return last - first
    following = next((place for place in range(document + 1, len(stream)) if stream.begins[place]), len(stream))
    return min(following, last) - max(document, first)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_windows_score_each_token_once_from_what_it_may_see(name: str) -> None:
    stream = stream_of()
    found = evaluate(KINDS[name], stream, context=8, stride=5)
    wanted = reference(KINDS[name], stream, 8, 5, fenced=True)
    assert (found.tokens, found.bytes) == (wanted.tokens, wanted.bytes) == (len(stream) - 1, stream.tokens.sum())
    assert found.nats == pytest.approx(wanted.nats, rel=1e-9)


@pytest.mark.parametrize("name", ["rope", "window", "lstm", "hybrid", "longrope", "ngram-4"])
@pytest.mark.parametrize("scored", [True, False])
def test_without_fences_context_runs_across_documents(name: str, scored: bool) -> None:
    stream = stream_of(scored=scored)
    found = evaluate(KINDS[name], stream, context=9, fenced=False)
    wanted = reference(KINDS[name], stream, 9, 9, fenced=False)
    assert found.tokens == wanted.tokens == (len(stream) - 1 - (0 if scored else 3))
    assert found.nats == pytest.approx(wanted.nats, rel=1e-9)
    assert found.nats != pytest.approx(evaluate(KINDS[name], stream, context=9).nats, rel=1e-6)


@pytest.mark.parametrize("name", sorted(name for name, model in KINDS.items() if model.limit() is None))
@pytest.mark.parametrize("scored", [True, False])
def test_whole_documents_carry_their_state(name: str, scored: bool) -> None:
    """Chunks of 5 tokens, ragged documents: the same as each document in one call."""
    model, stream = KINDS[name], stream_of(scored=scored)
    found = evaluate(model, stream, context=5, mode="documents", batch_size=3)
    assert found.bytes == stream.tokens.sum()  # ids are bytes, and what no token predicts has none
    starts = [*np.flatnonzero(stream.begins).tolist(), len(stream)]
    nats, count = 0.0, 0
    for first, following in pairwise(starts):
        ids = torch.from_numpy(stream.tokens[first : following + int(scored)].astype(np.int64))
        if len(ids) < 2:
            continue
        with torch.no_grad():
            y = model(ids[None, :-1]).y[0].log_softmax(-1)
        nats -= float(y.gather(1, ids[1:, None]).sum())
        count += len(ids) - 1
    assert found.tokens == count
    assert found.nats == pytest.approx(nats, rel=1e-9)


def test_the_whole_stream_as_one_document() -> None:
    model, stream = KINDS["hybrid"], stream_of()
    found = evaluate(model, stream, context=4, mode="documents", fenced=False)
    with torch.no_grad():
        ids = torch.from_numpy(stream.tokens.astype(np.int64))
        y = model(ids[None, :-1]).y[0].log_softmax(-1)
    assert found.nats == pytest.approx(-float(y.gather(1, ids[1:, None]).sum()), rel=1e-10)
    unscored = stream_of(scored=False)
    assert evaluate(model, unscored, mode="documents", fenced=False).tokens == len(unscored) - 1 - 3


@pytest.mark.parametrize("mode", ["windows", "documents"])
def test_batches_do_not_change_the_result(mode: str) -> None:
    model, stream = KINDS["hybrid"], stream_of((9, 30, 2, 2, 17))
    results = [evaluate(model, stream, context=8, mode=mode, batch_size=size) for size in (1, 2, 7)]
    assert len({(result.tokens, result.bytes) for result in results}) == 1
    assert [result.nats for result in results] == pytest.approx([results[0].nats] * 3, rel=1e-10)


def test_small_batches_share_a_call_and_only_those_chosen_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 41 batches of one window of 8 tokens, all fit into one call; of two that are chosen, two are read."""
    model, stream, calls = KINDS["hybrid"], stream_of((330,)), list[int]()
    hidden, batch = model.hidden, EvaluationWindows.batch

    def counting(self: EvaluationWindows, index: int) -> Batch:
        calls.append(index)
        return batch(self, index)

    monkeypatch.setattr(model, "hidden", lambda ids, *rest: (calls.append(-len(ids)), hidden(ids, *rest))[1])
    monkeypatch.setattr(EvaluationWindows, "batch", counting)
    whole = evaluate(model, stream, context=8, batch_size=1)
    assert [call for call in calls if call < 0] == [-len(calls) + 1]
    calls.clear()
    evaluate(model, stream, context=8, batch_size=1, batches=2)
    assert calls == [0, max(calls), -2] and max(calls) > 39
    monkeypatch.setattr("weft.evaluation.pieces.AT_ONCE", 1)
    assert evaluate(model, stream, context=8, batch_size=1).nats == pytest.approx(whole.nats, rel=1e-10)


def test_figures_by_hand() -> None:
    """``ab`` and ``b`` as bytes: E a b E b E; every probability is 1/2 but E after b, 1/4."""
    table = [[1e-30] * 257 for _ in range(257)]
    end, a, b = 256, ord("a"), ord("b")
    table[end][a], table[end][b], table[a][b], table[a][a], table[b][end], table[b][a] = .5, .5, .5, .5, .25, .75
    stream = encode_corpus(Corpus("two", (Document("1", "ab"), Document("2", "b"))), ByteTokenizer())
    found = evaluate(Bigram(table), stream, context=3)
    bits = 1 + 1 + 2 + 1 + 2
    assert (found.tokens, found.bytes, found.impossible) == (5, 3, 0)
    assert found.nats == pytest.approx(bits * math.log(2), rel=1e-12)
    assert found.perplexity == pytest.approx(2 ** (bits / 5), rel=1e-12)
    assert found.bits_per_byte == pytest.approx(bits / 3, rel=1e-12)
    plain = found.to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["protocol"]["description"] == (
        "corpus perplexity exp(sum of negative log-likelihoods / tokens), unit the tokenizer's token, every token "
        "scored once; windows of 3 tokens advancing by 3, each from an empty state; documents fenced; the first token "
        "of a document is predicted from its start symbol; the end of a document counts as a token of 0 bytes")


def test_the_protocol_says_what_was_done() -> None:
    model, stream = KINDS["lstm"], stream_of(scored=False)
    unmarked = TokenStream(stream.tokens, stream.begins, stream.byte_lengths + 1, False, VOCAB, "drawn", "", "")
    whole = evaluate(model, unmarked, mode="documents").protocol.describe()
    assert "each document whole, its state carried" in whole and "no start symbol" in whole
    assert whole.endswith("a document's first token is not scored")
    joined = evaluate(model, stream, mode="documents", fenced=False).protocol.describe()
    assert "the whole corpus as one document" in joined and "context runs across their borders" in joined
    assert evaluate(model, stream).protocol.window == model.config.context == 64


def test_zero_probability_is_infinite_and_counted() -> None:
    model = Bigram([[0.0, 1.0], [0.5, 0.5]])
    stream = TokenStream(np.array([0, 1, 0, 0, 0], dtype=np.uint8), np.array([True] + [False] * 4),
                         np.zeros(5, dtype=np.uint8), False, 2, "drawn", "", "")
    found = evaluate(model, stream, context=2)
    assert (found.nats, found.perplexity, found.impossible, found.bits_per_byte) == (math.inf, math.inf, 2, None)
    assert found.to_json()["perplexity"] == "Infinity"


def test_evaluation_uses_no_dropout_and_leaves_training_mode_alone() -> None:
    model = decoder("lstm", embedding={"std": 1.0, "dropout": 0.5}).train()
    assert evaluate(model, stream_of()).nats == evaluate(model, stream_of()).nats
    assert model.training


def test_what_cannot_be_evaluated() -> None:
    stream, model = stream_of(), KINDS["lstm"]
    short = decoder("lstm", position={"kind": "learned", "max_length": 8})
    assert evaluate(short, stream, context=8).tokens == len(stream) - 1
    for error, message, action in (
        (InputError, r"context: windows of 9 tokens, and this model has positions for 8 tokens\. Give a smaller",
         lambda: evaluate(short, stream, context=9)),
        (InputError, r"drawn: a document of 13 tokens, and this model has positions for 8 tokens\. Evaluate in windows",
         lambda: evaluate(short, stream, mode="documents")),
        (InputError, r"mode: unknown mode 'whole'\. Give 'windows' or 'documents'",
         lambda: evaluate(model, stream, mode="whole")),
        (InputError, r"stride: a stride of 4 was given, but whole documents have no stride\. Leave it out",
         lambda: evaluate(model, stream, mode="documents", stride=4)),
        (InputError, r"drawn: id 19 is outside the model's vocabulary of 11 ids\. Encode the corpus with the tokenizer",
         lambda: evaluate(model, stream_of((60,), vocab_size=20))),
        (DataError, r"context: must be at least 1, received 0", lambda: evaluate(model, stream, context=0)),
        (DataError, r"batch_size: must be at least 1, received 0\. Choose",
         lambda: evaluate(model, stream, mode="documents", batch_size=0)),
        (DataError, r"drawn: 1 tokens are too few", lambda: evaluate(model, stream_of((), scored=True))),
        (DataError, r"drawn: no token can be predicted: every document has a single token\. Give more text",
         lambda: evaluate(model, stream_of((0, 0), scored=False))),
        (UnsupportedError, "evaluation needs probabilities of the next token",
         lambda: evaluate(seeing_ahead(decoder({"kind": "attention", "n_heads": 2})), stream)),
        (UnsupportedError, r"EncoderDecoder: this model decodes from a source, and a corpus has none\. Score rows",
         lambda: evaluate(kinds()["encoder_decoder-0"], stream)),
        (FailedError, r"drawn: the model gives NaN\. Check", lambda: evaluate(Bigram([[math.nan] * 11] * 11), stream)),
    ):
        with pytest.raises(error, match=message):
            action()


def test_some_batches_are_spread_evenly_and_the_protocol_says_so() -> None:
    model, stream = next(iter(KINDS.values())), stream_of((40, 30, 50))
    every = evaluate(model, stream, context=8, batch_size=2)
    some = evaluate(model, stream, context=8, batch_size=2, batches=3)
    assert "3 of 8 batches, spread evenly" in some.protocol.describe() and "batches" not in every.protocol.describe()
    assert every.protocol.part is None and some.tokens < every.tokens
    assert evaluate(model, stream, context=8, batch_size=2, batches=100) == every
    for batches, mode in ((0, "windows"), (2, "documents")):
        with pytest.raises(InputError, match=f"batches: {batches} batches of {mode}"):
            evaluate(model, stream, context=8, batches=batches, mode=mode)


def test_impossible_tokens_are_counted_in_all_pieces() -> None:
    """A piece without any comes last, and so does one that has some."""
    inf = math.inf
    for pieces in ([[-1.0, -inf], [-inf, -inf, -2.0], [-1.0]], [[-1.0], [-inf]], [[-inf], [-1.0]]):
        log_probs = iter(pieces)
        model: Any = SimpleNamespace(readout=SimpleNamespace(
            log_prob=lambda h, targets, rows=log_probs: torch.tensor([next(rows)])))
        given: Any = [SimpleNamespace(h=None, targets=torch.zeros(1, len(piece)), bytes=len(piece), lost=0.0)
                          for piece in pieces]
        protocol: Any = SimpleNamespace(corpus="some text")
        found = _sum(model, iter(given), protocol, None)
        assert found.impossible == sum(piece.count(-inf) for piece in pieces)
        assert found.tokens == sum(map(len, pieces)) and found.nats == inf

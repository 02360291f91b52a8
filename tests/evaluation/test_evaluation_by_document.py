"""Sums by document and the means that follow from them, against one call for each document and sums by hand."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from decoding.small_models import Bigram
from evaluation.test_evaluation_evaluate import KINDS, stream_of
from weft.core.strict_json import plain
from weft.data import Corpus, Document, TokenStream, encode_corpus
from weft.data.stream import SCORED
from weft.evaluation import Evaluation, evaluate
from weft.evaluation.by_document import texts_of, words_in
from weft.tokenizers import ByteTokenizer

ONE = ("lstm", "rope")


@torch.no_grad()
def naive(name: str, stream: TokenStream, *, scored: bool) -> list[tuple[float, int, int]]:
    """Nats, tokens and bytes of each document that predicts a token, by a call for each."""
    starts = [*np.flatnonzero(stream.begins).tolist(), len(stream)]
    found = []
    for first, following in pairwise(starts):
        places = list(range(first, min(following + int(scored), len(stream))))
        if len(places) < 2:
            continue
        ids = torch.from_numpy(stream.tokens[places].astype(np.int64))
        log_probs = KINDS[name](ids[None, :-1]).y[0].log_softmax(-1)
        nats = -sum(float(log_probs[step, int(ids[step + 1])]) for step in range(len(ids) - 1))
        found.append((nats, len(ids) - 1, sum(int(stream.byte_lengths[place]) for place in places[1:])))
    return found


@pytest.mark.parametrize("mode", ["windows", "documents"])
@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize("name", ONE)
def test_each_document_has_the_sums_of_a_call_of_its_own(name: str, scored: bool, mode: Any) -> None:
    stream = stream_of((7, 1, 12, 4), scored=scored)
    found = evaluate(KINDS[name], stream, context=32, mode=mode, by_document=True)
    wanted = naive(name, stream, scored=scored)
    assert [(each.tokens, each.bytes) for each in found.documents] == [(tokens, size) for _, tokens, size in wanted]
    assert [each.nats for each in found.documents] == pytest.approx([nats for nats, _, _ in wanted], rel=1e-9)
    assert [each.index for each in found.documents] == list(range(len(wanted)))
    assert sum(each.tokens for each in found.documents) == found.tokens
    assert found.mean_document_perplexity == pytest.approx(
        sum(math.exp(nats / tokens) for nats, tokens, _ in wanted) / len(wanted), rel=1e-9)


def test_short_windows_score_the_same_tokens_of_each_document() -> None:
    stream = stream_of((7, 1, 12, 4))
    by = [evaluate(KINDS["lstm"], stream, context=size, stride=stride, batch_size=rows, by_document=True)
          for size, stride, rows in ((5, 5, 2), (5, 2, 3), (32, 32, 1))]
    assert len({tuple((each.index, each.tokens, each.bytes) for each in found.documents) for found in by}) == 1
    for found in by:
        assert math.fsum(each.nats for each in found.documents) == pytest.approx(found.nats, rel=1e-12)


def test_what_stands_before_the_first_beginning_is_a_document_too() -> None:
    stream = stream_of((3, 4), scored=False)
    begins = stream.begins.copy()
    begins[0] = False
    cut = TokenStream(stream.tokens, begins, stream.byte_lengths, False, stream.vocab_size, "drawn", "", "")
    assert [each.tokens for each in evaluate(KINDS["lstm"], cut, by_document=True).documents] == [3, 4]


def two_documents() -> tuple[Evaluation, TokenStream]:
    """``a b`` and ``b`` as bytes; every probability is 1/2, and 1/4 where a document ends."""
    table = [[1e-30] * 257 for _ in range(257)]
    end, a, b, space = 256, ord("a"), ord("b"), ord(" ")
    for before, after, chance in ((end, a, .5), (end, b, .5), (a, space, .5), (space, b, .5), (b, end, .25),
                                  (a, b, .5), (space, space, .5), (b, b, .75)):
        table[before][after] = chance
    stream = encode_corpus(Corpus("two", (Document("1", "a b"), Document("2", "b"))), ByteTokenizer())
    return evaluate(Bigram(table), stream, context=8, by_document=True), stream


def test_means_by_hand() -> None:
    """Five bits for four tokens and three bits for two: eight bits in all, six tokens, three words."""
    found, stream = two_documents()
    assert [each.nats / math.log(2) for each in found.documents] == pytest.approx([5, 3], rel=1e-12)
    assert found.bits_per_token == pytest.approx(8 / 6, rel=1e-12)
    assert found.mean_document_perplexity == pytest.approx((2 ** (5 / 4) + 2 ** (3 / 2)) / 2, rel=1e-12)
    assert [each.bits_per_byte for each in found.documents] == pytest.approx([5 / 3, 3], rel=1e-12)
    texts = texts_of(stream, ByteTokenizer())
    assert texts == ["a b", "b"] and words_in(texts) == 3
    counted = Evaluation(found.nats, found.tokens, found.bytes, 0, found.protocol, found.documents, words_in(texts))
    assert counted.word_perplexity == pytest.approx(2 ** (8 / 3), rel=1e-12)
    data = counted.to_json()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert (data["words"], data["documents"], data["word_perplexity"]) == (3, 2, counted.word_perplexity)
    row = plain(found.documents)[1]
    assert (row["index"], row["tokens"], row["bytes"]) == (1, 2, 1)
    assert row["perplexity"] == pytest.approx(2 ** 1.5, rel=1e-12)


def test_without_documents_and_words_their_means_are_unknown() -> None:
    found = evaluate(KINDS["lstm"], stream_of())
    assert (found.documents, found.mean_document_perplexity, found.word_perplexity) == ((), None, None)
    assert found.to_json()["documents"] is None


def test_words_are_unknown_where_the_tokens_do_not_give_the_text_back() -> None:
    _, stream = two_documents()
    lengths = stream.byte_lengths.copy()
    lengths[1] += 1
    lossy = TokenStream(stream.tokens, stream.begins, lengths, stream.begins_scored, 257, "two", "", "")
    assert texts_of(lossy, ByteTokenizer()) is None
    flags = np.full(len(stream), SCORED, dtype=np.uint8)
    partly = TokenStream(stream.tokens, stream.begins, stream.byte_lengths, True, 257, "two", "", "", flags=flags)
    assert texts_of(partly, ByteTokenizer()) is None


def test_an_impossible_token_is_its_documents_own() -> None:
    model = Bigram([[0.0, 1.0], [0.5, 0.5]])
    stream = TokenStream(np.array([0, 1, 0, 0], dtype=np.uint8), np.array([True, False, True, False]),
                         np.zeros(4, dtype=np.uint8), False, 2, "drawn", "", "")
    found = evaluate(model, stream, by_document=True)
    assert [(each.nats, each.impossible, each.bits_per_byte) for each in found.documents] == [
        (0.0, 0, None), (math.inf, 1, None)]
    assert found.mean_document_perplexity == math.inf

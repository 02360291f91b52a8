"""Evaluation windows: each token that can be predicted counts exactly once, with the context that was promised."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import DataError
from weft.data import Corpus, Document, EvaluationWindows, TokenStream, encode_corpus
from weft.tokenizers import BPETokenizer, ByteTokenizer


def numbered(count: int) -> TokenStream:
    """Tokens that name their own position."""
    return TokenStream(
        tokens=np.arange(count, dtype=np.uint32),
        begins=np.arange(count) % 7 == 0,
        byte_lengths=np.ones(count, dtype=np.uint8),
        begins_scored=True,
        vocab_size=count,
        corpus="numbers",
        corpus_sha256="",
        tokenizer_sha256="",
    )


@settings(max_examples=120, deadline=None)
@given(st.integers(2, 100), st.integers(1, 30), st.integers(1, 5), st.data())
def test_every_target_counts_exactly_once(count: int, context: int, rows: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, context))
    windows = EvaluationWindows(numbered(count), context=context, stride=stride, rows=rows)
    batches = list(windows)
    assert len(batches) == len(windows)
    assert sum(len(batch.inputs) for batch in batches) == windows.windows
    targets = np.concatenate([batch.targets[batch.scored] for batch in batches])
    assert sorted(targets) == list(range(1, count))
    for batch in batches:
        assert batch.inputs.shape[1] == min(context, count - 1)
        assert len(batch.inputs) <= rows and batch.fresh
        seen_before = batch.targets - batch.inputs[:, :1]
        promised = np.minimum(context - stride + 1, batch.targets)
        assert (seen_before[batch.scored] >= promised[batch.scored]).all()


def test_windows_of_a_small_example() -> None:
    batches = list(EvaluationWindows(numbered(9), context=4, stride=3, rows=2))
    assert [batch.inputs.tolist() for batch in batches] == [[[0, 1, 2, 3], [3, 4, 5, 6]], [[4, 5, 6, 7]]]
    assert [batch.targets[batch.scored].tolist() for batch in batches] == [[1, 2, 3, 4, 5, 6, 7], [8]]
    assert batches[0].begins.tolist() == [[True, False, False, False], [False, False, False, False]]
    assert batches[1].begins.tolist() == [[False, False, False, True]]


def test_bytes_counted_are_the_bytes_of_the_corpus() -> None:
    corpus = Corpus("c", tuple(Document(str(i), text) for i, text in enumerate(["aé世", "b" * 11, "😀"])))
    stream = encode_corpus(corpus, ByteTokenizer())
    windows = EvaluationWindows(stream, context=5, stride=2, rows=3)
    assert sum(batch.scored_bytes for batch in windows) == corpus.size_bytes == 21
    assert sum(batch.scored_tokens for batch in windows) == corpus.size_bytes + 3


def test_bits_per_byte_of_a_uniform_model_are_exact() -> None:
    corpus = Corpus("c", (Document("d", "ab" * 40),))
    stream = encode_corpus(corpus, ByteTokenizer())
    batches = list(EvaluationWindows(stream, context=16, stride=5))
    nats = sum(batch.scored_tokens for batch in batches) * math.log(257)
    bits_per_byte = nats / math.log(2) / sum(batch.scored_bytes for batch in batches)
    assert bits_per_byte == pytest.approx(math.log2(257) * 81 / 80, rel=1e-12)


def test_the_protocol_says_what_counts() -> None:
    shared = EvaluationWindows(numbered(9), context=4, stride=3)
    assert shared.protocol.startswith("context 4, stride 3, ")
    assert shared.protocol.endswith("the end of a document counts as a token of 0 bytes")
    tokenizer = BPETokenizer(BPETokenizer.train(["ab ab ab"], 258).files()["tokenizer.json"])
    bare = encode_corpus(Corpus("c", (Document("x", "zyx"), Document("y", "wvut"))), tokenizer)
    windows = EvaluationWindows(bare, context=3)
    assert (
        windows.protocol
        == "context 3, stride 3, every other token counted once; a document's first token does not count"
    )
    assert sum(batch.scored_tokens for batch in windows) == 5


def test_what_is_out_of_range_is_refused() -> None:
    stream = numbered(20)
    with pytest.raises(DataError, match=r"^context: must be at least 1, received 0\. Choose one in range"):
        EvaluationWindows(stream, context=0)
    for stride in (0, 5):
        with pytest.raises(DataError, match=rf"^stride: must be from 1 to the context, 4, received {stride}\. Choose"):
            EvaluationWindows(stream, context=4, stride=stride)
    with pytest.raises(DataError, match=r"^rows: must be at least 1, received 0\. Choose"):
        EvaluationWindows(stream, context=4, rows=0)
    with pytest.raises(DataError, match=r"^numbers: 1 tokens are too few: predicting one token .* needs 2\. Give more"):
        EvaluationWindows(numbered(1), context=4)

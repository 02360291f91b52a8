"""A corpus as one row of tokens: the layout of documents, and bytes counted exactly."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from weft.core.errors import DataError, TokenizerError
from weft.data import Corpus, Document, embedded_corpus, encode_corpus
from weft.data.encoding import encode_documents
from weft.data.layout import EncodedPart, RowLayout
from weft.tokenizers import BPETokenizer, ByteTokenizer, CharacterTokenizer, WordTokenizer

END = "<|endoftext|>"
TWO = Corpus("two", (Document("a", "ab"), Document("b", "é")))
SMALL = embedded_corpus(max_bytes=30_000)
SOURCE = BPETokenizer.train(SMALL.texts(), 300).files()["tokenizer.json"]


def test_the_token_that_ends_a_document_opens_the_next() -> None:
    stream = encode_corpus(TWO, ByteTokenizer())
    assert stream.tokens.tolist() == [256, 97, 98, 256, 0xC3, 0xA9, 256]
    assert np.flatnonzero(stream.begins).tolist() == [0, 3, 6]
    assert stream.byte_lengths.tolist() == [0, 1, 1, 0, 1, 1, 0]
    assert stream.begins_scored
    assert len(stream) == 7
    assert stream.tokens.dtype == np.uint16


def test_distinct_begin_and_end_enclose_each_document() -> None:
    tokenizer = BPETokenizer(SOURCE, bos="a", eos=END)
    opening, end, byte = tokenizer.bos_id, tokenizer.eos_id, tokenizer.encode("b")[0]
    stream = encode_corpus(Corpus("c", (Document("x", "b"), Document("y", "bb"))), tokenizer)
    assert stream.tokens.tolist() == [opening, byte, end, opening, byte, byte, end]
    assert np.flatnonzero(stream.begins).tolist() == [0, 3]
    assert stream.byte_lengths.tolist() == [0, 1, 0, 0, 1, 1, 0]
    assert not stream.begins_scored


def test_an_end_that_the_text_spells_is_not_doubled() -> None:
    texts = ("ab c\n", "c")
    tokenizer = WordTokenizer.train(texts, end_of_line=True)
    end, ab, c = tokenizer.eos_id, *(tokenizer.encode(word)[0] for word in ("ab", "c"))
    stream = encode_corpus(Corpus("c", (Document("x", texts[0]), Document("y", texts[1]))), tokenizer)
    assert stream.tokens.tolist() == [end, ab, c, end, c, end]
    assert np.flatnonzero(stream.begins).tolist() == [0, 3, 5]
    assert stream.byte_lengths.sum() == 6 and stream.byte_lengths[3] == 1, "the line end's byte is kept"
    assert encode_corpus(Corpus("c", (Document("x", "ab\n"),)), tokenizer).byte_lengths.tolist()[-1] == 1


def test_a_closing_token_that_the_text_spells_is_not_doubled() -> None:
    encoded = [EncodedPart(np.array([5, 2]), np.array([3, 1])), EncodedPart(np.array([5]), np.array([3]))]
    rows = list(RowLayout(opening=1, closing=2, final=None).rows([[part] for part in encoded]))
    assert [row.ids.tolist() for row in rows] == [[1, 5, 2], [1, 5, 2]]
    assert [row.byte_lengths.tolist() for row in rows] == [[0, 3, 1], [0, 3, 0]]


def test_a_long_document_in_stretches_is_one_document() -> None:
    text = "some words of a long text\n" * 30_000
    corpus = Corpus("c", (Document("long", text), Document("short", "b")))
    assert sum(map(len, encode_documents(corpus.documents, ByteTokenizer()))) > 2
    stream = encode_corpus(corpus, ByteTokenizer())
    np.testing.assert_array_equal(stream.tokens, [256, *text.encode(), 256, ord("b"), 256])
    assert np.flatnonzero(stream.begins).tolist() == [0, len(text) + 1, len(text) + 3]
    first, last = (EncodedPart(np.array([token]), np.array([1]), token == 5, token == 6) for token in (5, 6))
    rows = list(RowLayout(opening=1, closing=2, final=None).rows([[first], [last]]))
    assert [(row.ids.tolist(), row.begins.tolist()) for row in rows] == [([1, 5], [True, False]), ([6, 2], [False] * 2)]


def test_without_begin_and_end_documents_touch() -> None:
    tokenizer = BPETokenizer(SOURCE)
    byte = tokenizer.encode("b")[0]
    stream = encode_corpus(Corpus("c", (Document("x", "bb"), Document("y", "b"))), tokenizer)
    assert stream.tokens.tolist() == [byte] * 3
    assert np.flatnonzero(stream.begins).tolist() == [0, 2]
    assert not stream.begins_scored


@pytest.mark.parametrize("special", [{"bos": END}, {"eos": END}])
def test_one_of_the_two_serves_as_both(special: dict[str, str]) -> None:
    tokenizer = BPETokenizer(SOURCE, **special)
    stream = encode_corpus(TWO, tokenizer)
    end = tokenizer.bos_id if tokenizer.eos_id is None else tokenizer.eos_id
    assert np.flatnonzero(stream.tokens == end).tolist() == np.flatnonzero(stream.begins).tolist()
    assert stream.tokens[0] == stream.tokens[-1] == end
    assert stream.begins_scored


@pytest.mark.parametrize(
    "tokenizer",
    [ByteTokenizer(), BPETokenizer(SOURCE, bos=END, eos=END), CharacterTokenizer.train(SMALL.texts())],
    ids=lambda t: t.kind,
)
def test_a_stream_holds_the_whole_corpus(tokenizer: BPETokenizer) -> None:
    stream = encode_corpus(SMALL, tokenizer)
    assert stream.byte_lengths.sum() == SMALL.size_bytes
    pieces = np.split(stream.tokens, np.flatnonzero(stream.begins))[1:]
    assert [tokenizer.decode(piece) for piece in pieces] == [*SMALL.texts(), ""]
    assert (stream.corpus_sha256, stream.tokenizer_sha256) == (SMALL.sha256, tokenizer.fingerprint())
    assert stream.vocab_size == tokenizer.vocab_size


def test_a_corpus_without_tokens_is_refused() -> None:
    with pytest.raises(DataError, match=r"none: the corpus gives no token\. Give a corpus that has text"):
        encode_corpus(Corpus("none", ()), ByteTokenizer())


def test_text_that_cannot_be_expressed_is_refused_by_document() -> None:
    with pytest.raises(
        TokenizerError, match=r"^b: the character 'é' .* at position 0 is not in the vocabulary .* Train"
    ):
        encode_corpus(TWO, CharacterTokenizer("ab"))


def test_text_needs_no_torch() -> None:
    """Commands on text answer at once, since only the edge (`weft.data.tensors`) and configurations import torch."""
    program = "import sys, weft.data, weft.tokenizers; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"

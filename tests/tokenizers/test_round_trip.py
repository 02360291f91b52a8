"""Every tokenizer gives back the text it was given, counts its bytes exactly and streams what it decodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.data import embedded_corpus
from weft.tokenizers import BPETokenizer, ByteTokenizer, CharacterTokenizer, Tokenizer

ALPHABET = "abc dé世界😀\n\t'.x"
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
FAMILIAR_TEXT = st.text(st.sampled_from(ALPHABET), max_size=60)

BYTES = ByteTokenizer()
CHARACTERS = CharacterTokenizer(ALPHABET)
BPE = BPETokenizer.train(embedded_corpus(max_bytes=60_000).texts(), 400)
ANY = [BYTES, BPE]
ALL = [*ANY, CHARACTERS]
BY_NAME = pytest.mark.parametrize("tokenizer", ALL, ids=lambda tokenizer: tokenizer.kind)


def check(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_array(text).tolist() == ids
    assert all(0 <= token < tokenizer.vocab_size for token in ids)


@settings(max_examples=150, deadline=None)
@given(ANY_TEXT)
def test_any_text_round_trips(text: str) -> None:
    for tokenizer in ANY:
        check(tokenizer, text)


@settings(max_examples=80, deadline=None)
@given(FAMILIAR_TEXT)
def test_characters_round_trip(text: str) -> None:
    check(CHARACTERS, text)


@settings(max_examples=80, deadline=None)
@given(FAMILIAR_TEXT, FAMILIAR_TEXT)
def test_byte_lengths_sum_to_the_bytes_of_the_text(text: str, other: str) -> None:
    for tokenizer in ALL:
        measured = tokenizer.measure(text)
        assert measured.byte_lengths.sum() == len(text.encode())
        assert measured.ids.tolist() == tokenizer.encode(text)
        np.testing.assert_array_equal(tokenizer.byte_lengths(measured.ids), measured.byte_lengths)
        many = tokenizer.measure_many([text, other])
        np.testing.assert_array_equal(many[0].ids, measured.ids)
        assert many[1].byte_lengths.sum() == len(other.encode())


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_streamed_pieces_join_to_the_decoding(data: st.DataObject) -> None:
    for tokenizer in ALL:
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
        stream = tokenizer.stream()
        pieces = [stream.push(token) for token in ids]
        assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)
        assert stream.finish() == ""


@BY_NAME
def test_a_stream_never_emits_half_a_character(tokenizer: Tokenizer) -> None:
    text = "aé世😀b"
    stream = tokenizer.stream()
    for token in tokenizer.encode(text):
        assert "\ufffd" not in stream.push(token)
    assert stream.finish() == ""


def test_a_stream_emits_a_character_with_its_last_byte() -> None:
    stream = BYTES.stream()
    assert [stream.push(byte) for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]


def test_half_a_character_is_replaced_when_the_stream_ends() -> None:
    stream = BYTES.stream()
    assert stream.push(0xF0) == ""
    assert stream.finish() == "\ufffd"
    assert stream.push(ord("a")) == "a"


def test_bytes_are_their_own_ids() -> None:
    assert BYTES.encode("aé") == [97, 0xC3, 0xA9]
    assert BYTES.vocab_size == 257
    assert (BYTES.bos_id, BYTES.eos_id) == (256, 256)


def test_bytes_decode_half_a_character_and_skip_the_end_of_a_document() -> None:
    assert BYTES.decode([97, 256, 0xC3]) == "a\ufffd"
    assert BYTES.byte_lengths([97, 256, 0xC3]).tolist() == [1, 0, 1]


def test_characters_are_numbered_by_code_point() -> None:
    tokenizer = CharacterTokenizer.train(["cab", "é"])
    assert tokenizer.encode("abcé") == [0, 1, 2, 3]
    assert (tokenizer.eos_id, tokenizer.vocab_size, tokenizer.unknown_id) == (4, 5, None)
    assert tokenizer.byte_lengths([0, 3, 4]).tolist() == [1, 2, 0]
    assert tokenizer.decode([0, 4, 3]) == "aé"


def test_a_declared_unknown_character_keeps_its_bytes_when_measured() -> None:
    tokenizer = CharacterTokenizer.train(["ab"], unknown=True)
    measured = tokenizer.measure("a世b")
    assert measured.ids.tolist() == [0, tokenizer.unknown_id, 1]
    assert measured.byte_lengths.tolist() == [1, 3, 1]
    assert tokenizer.decode(measured.ids) == "a\ufffdb"


def test_a_text_that_spells_a_special_token_stays_text() -> None:
    text = "a<|endoftext|>b"
    end = BPE.eos_id
    assert end is not None and end not in BPE.encode(text)
    assert BPE.decode(BPE.encode(text)) == text
    assert BPE.decode([end]) == ""
    assert BPE.byte_lengths([end]).tolist() == [0]


def test_bpe_compresses_and_is_deterministic() -> None:
    texts = embedded_corpus(max_bytes=60_000).texts()
    assert BPETokenizer.train(texts, 400).fingerprint() == BPE.fingerprint()
    assert BPE.vocab_size == 400
    # 143 merges on this source give about 1.8 bytes per token; bytes give 1.
    assert sum(len(BPE.encode(text)) for text in texts) < 0.65 * sum(len(text.encode()) for text in texts)


def test_bpe_decodes_as_the_library_does() -> None:
    import tokenizers

    library = tokenizers.Tokenizer.from_buffer(BPE.files()["tokenizer.json"])
    text = embedded_corpus(max_bytes=60_000).texts()[0]
    assert BPE.encode(text) == library.encode(text).ids
    assert BPE.decode(BPE.encode(text)) == library.decode(library.encode(text).ids)


@pytest.mark.parametrize("make", [lambda: ByteTokenizer(), lambda: CharacterTokenizer("ab"), lambda: BPE])
def test_names_say_kind_and_size(make: Callable[[], Tokenizer]) -> None:
    assert make().name in ("bytes-257", "characters-3", "BPE-400")

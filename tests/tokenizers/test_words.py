"""Words: the vocabulary, the Penn Treebank protocol, and the bytes of what no word holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import TokenizerError
from weft.tokenizers import WordTokenizer, load_tokenizer

TREEBANK = " the <unk> of N \n the cat \n\n"
LINES = WordTokenizer.train([TREEBANK], end_of_line=True)
PLAIN = WordTokenizer.train([TREEBANK, "the é世"])


def test_words_are_numbered_by_frequency_then_by_their_characters() -> None:
    assert LINES.files() == {"words.txt": b"the\nN\ncat\nof\n"}
    assert (LINES.vocab_size, LINES.eos_id, LINES.bos_id, LINES.unknown_id) == (6, 0, 0, 1)
    assert LINES.encode("the cat of N") == [2, 4, 5, 3]


def test_the_treebank_protocol_gives_a_token_for_each_word_and_each_line_end() -> None:
    assert LINES.encode(TREEBANK) == [2, 1, 5, 3, 0, 2, 4, 0, 0]
    assert LINES.decode(LINES.encode(TREEBANK)) == "the <unk> of N\nthe cat\n\n"
    assert PLAIN.encode("the\ncat") == [PLAIN.encode("the")[0], PLAIN.encode("cat")[0]]


def test_a_literal_unknown_word_is_the_unknown_word_and_takes_no_second_id() -> None:
    assert LINES.encode("<unk> dog") == [1, 1]
    assert b"<unk>" not in LINES.files()["words.txt"]


def test_each_byte_is_counted_once_with_the_word_behind_it() -> None:
    measured = LINES.measure("  the dögs\n N ")
    assert measured.ids.tolist() == [2, 1, 0, 3]
    assert measured.byte_lengths.tolist() == [5, 6, 1, 3]


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("the cat.\n\t\r\x1c\x85\u2003世é😀"), max_size=40))
def test_bytes_sum_to_those_of_any_text(text: str) -> None:
    for tokenizer in (LINES, PLAIN):
        measured = tokenizer.measure(text)
        assert measured.ids.tolist() == tokenizer.encode(text)
        assert (measured.byte_lengths > 0).all()
        assert measured.byte_lengths.sum() == (len(text.encode()) if measured.ids.size else 0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12), st.booleans())
def test_streams_equal_decoding_at_every_cut(ids: list[int], specials: bool) -> None:
    for tokenizer in (LINES, PLAIN):
        stream, text = tokenizer.stream(specials=specials), ""
        for place, token in enumerate(ids):
            text += stream.push(token)
            assert text == tokenizer.decode(ids[: place + 1], specials=specials)
        assert stream.finish() == ""


def test_text_of_known_words_with_single_spaces_comes_back() -> None:
    for text in ("the cat", "the", "the\ncat\n\nof N\n"):
        assert LINES.decode(LINES.encode(text)) == text


def test_the_token_between_documents_is_spelled_only_on_request() -> None:
    assert PLAIN.decode([2, 0, 2]) == "the the"
    assert PLAIN.decode([2, 0, 2], specials=True) == "the <eos> the"
    assert PLAIN.encode("the <eos> the", specials=True) == [2, 0, 2]
    assert PLAIN.encode("the <eos>") == [2, 1]


def test_limits_leave_rare_words_out() -> None:
    assert WordTokenizer.train([TREEBANK], vocab_size=3).files()["words.txt"] == b"the\n"
    assert WordTokenizer.train([TREEBANK], min_count=2).files()["words.txt"] == b"the\n"


def test_saved_words_load_as_they_were(tmp_path: Path) -> None:
    for folder, tokenizer in ((tmp_path / "lines", LINES), (tmp_path / "plain", PLAIN)):
        tokenizer.save(folder)
        loaded = load_tokenizer(folder)
        assert loaded.fingerprint() == tokenizer.fingerprint()
        assert loaded.encode(TREEBANK) == tokenizer.encode(TREEBANK)


def test_what_cannot_be_a_vocabulary_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"words: the vocabulary has no words\. .* lower min_count or raise"):
        WordTokenizer.train(["a b"], min_count=2)
    for words in (["a", "a"], ["a b"], ["<unk>"], [""]):
        with pytest.raises(TokenizerError, match=r"words: '.*' cannot be a word of the vocabulary.* Remove it"):
            WordTokenizer(words)


def test_words_alone_do_not_tell_their_bytes() -> None:
    with pytest.raises(TokenizerError, match=r"ids: words do not determine how many bytes .* measure\(text\)"):
        PLAIN.byte_lengths([2])

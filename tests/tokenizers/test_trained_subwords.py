"""WordPiece and unigram vocabularies learned here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.config import parse_part
from weft.core.errors import ConfigError, TokenizerError
from weft.data import embedded_corpus
from weft.tokenizers import Tokenizer, UnigramTokenizer, WordPieceTokenizer, load_tokenizer
from weft.tokenizers.config import TokenizerConfig

TEXTS = embedded_corpus(max_bytes=40_000).texts()
PIECES = WordPieceTokenizer.train(TEXTS, 400)
LOWER = WordPieceTokenizer.train(TEXTS, 400, lowercase=True)
UNIGRAM = UnigramTokenizer.train(TEXTS, 500)
BY_NAME = pytest.mark.parametrize("tokenizer", [PIECES, LOWER, UNIGRAM], ids=["wordpiece", "lowercase", "unigram"])
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(max_examples=150, deadline=None)
@given(ANY_TEXT)
def test_any_text_but_the_mark_comes_back_from_a_unigram_model(text: str) -> None:
    assert UNIGRAM.decode(UNIGRAM.encode(text)) == text.replace("▁", " ")


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("the class.\n ▁é世😀X"), max_size=40))
def test_bytes_sum_to_those_of_any_text(text: str) -> None:
    for tokenizer in (PIECES, LOWER, UNIGRAM):
        measured = tokenizer.measure(text)
        assert measured.ids.tolist() == tokenizer.encode(text)
        assert measured.byte_lengths.sum() == (len(text.encode()) if measured.ids.size else 0)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_streams_equal_decoding_at_every_cut(data: st.DataObject) -> None:
    for tokenizer in (PIECES, UNIGRAM):
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=15))
        for cut in range(len(ids) + 1):
            stream = tokenizer.stream()
            assert "".join(map(stream.push, ids[:cut])) + stream.finish() == tokenizer.decode(ids[:cut])


@pytest.mark.parametrize("text", ["<s> a </s> <unk>", "<0x0A><0xE4>", " <0x41>", "a<s>b"])
def test_text_that_spells_a_piece_of_a_unigram_model_stays_text(text: str) -> None:
    ids = UNIGRAM.encode(text)
    assert UNIGRAM.decode(ids) == text
    assert not {0, 1, 2} & set(ids)


def test_special_tokens_are_read_and_shown_on_request() -> None:
    assert UNIGRAM.encode("<s>", specials=True) == [1] == [UNIGRAM.bos_id]
    assert UNIGRAM.decode([1, *UNIGRAM.encode("a"), 2], specials=True) == "<s> a</s>"
    assert UNIGRAM.decode([1, *UNIGRAM.encode("a"), 2]) == "a"
    assert PIECES.encode("[CLS] the [SEP]", specials=True) == [2, *PIECES.encode("the"), 3]
    assert not {2, 3} & set(PIECES.encode("[CLS] the [SEP]"))
    assert PIECES.decode([2, *PIECES.encode("the")], specials=True) == "[CLS] the"
    assert (PIECES.bos_id, PIECES.eos_id, UNIGRAM.eos_id) == (2, 3, 2)


def test_a_continuation_keeps_the_space_before_its_first_word() -> None:
    prompt, rest = UNIGRAM.encode("the"), UNIGRAM.encode("class")
    stream = UNIGRAM.stream()
    stream.follow([1, *prompt])
    assert "".join(map(stream.push, rest)) + stream.finish() == " class"
    stream.follow([1])
    assert "".join(map(stream.push, rest)) + stream.finish() == "class"


def test_word_pieces_follow_berts_conventions() -> None:
    model = json.loads(PIECES.files()["tokenizer.json"])["model"]
    vocabulary = model["vocab"]
    assert [vocabulary[token] for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")] == [0, 1, 2, 3, 4]
    assert model["continuing_subword_prefix"] == "##" and any(token.startswith("##") for token in vocabulary)
    assert PIECES.encode("世") == [1] == PIECES.encode("x" * 101)
    assert 1 not in PIECES.encode("x" * 100)
    assert LOWER.encode("ÉCLASS Class") == LOWER.encode("eclass class")
    assert PIECES.encode("Class") != PIECES.encode("class")


def train_again(tokenizer: Tokenizer) -> Tokenizer:
    if tokenizer is UNIGRAM:
        return UnigramTokenizer.train(TEXTS, 500)
    return WordPieceTokenizer.train(TEXTS, 400, lowercase=tokenizer is LOWER)


@BY_NAME
def test_training_is_the_same_every_time_and_saves(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert train_again(tokenizer).fingerprint() == tokenizer.fingerprint()
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert type(loaded) is type(tokenizer)
    assert loaded.encode(TEXTS[0][:300]) == tokenizer.encode(TEXTS[0][:300])


def test_vocabularies_have_the_size_that_was_asked_for() -> None:
    assert (PIECES.vocab_size, LOWER.vocab_size, UNIGRAM.vocab_size) == (400, 400, 500)
    with pytest.raises(TokenizerError, match=r"vocab_size: a unigram vocabulary needs at least 291 .* received 290"):
        UnigramTokenizer.train(TEXTS, 290)
    with pytest.raises(TokenizerError, match=r"the training text gives only 281 ids, and 300 are requested\. Give"):
        UnigramTokenizer.train(["ab ab ab"], 300)
    with pytest.raises(TokenizerError, match=r"characters of the training text alone take \d+ ids, and 9 are req"):
        WordPieceTokenizer.train(TEXTS, 9)
    for train in (UnigramTokenizer.train, WordPieceTokenizer.train):
        with pytest.raises(TokenizerError, match=r"vocab_size: the training text gives only \d+ ids, and 300 are"):
            train([""], 300)


@pytest.mark.parametrize("data", [
    {"kind": "words", "vocab_size": 50, "min_count": 2, "end_of_line": True},
    {"kind": "wordpiece", "vocab_size": 400, "lowercase": True},
    {"kind": "unigram", "vocab_size": 500},
    {"kind": "sentencepiece", "vocab_size": 400, "algorithm": "bpe"},
    {"kind": "sentencepiece", "vocab_size": 400},
])  # fmt: skip
def test_configurations_give_tokenizers_of_the_size_they_know(data: dict[str, object]) -> None:
    config = parse_part(("tokenizer",), data)
    assert isinstance(config, TokenizerConfig)
    assert parse_part(("tokenizer",), config.dump()) == config
    tokenizer = config.fit(TEXTS)
    assert tokenizer.kind == data["kind"]
    assert config.known_vocab_size() in (None, tokenizer.vocab_size)
    assert (config.known_vocab_size() is None) == (data["kind"] == "words")
    assert tokenizer.vocab_size == data["vocab_size"]


def test_a_model_file_is_not_learned() -> None:
    with pytest.raises(ConfigError, match=r"a model file is not learned: leave out vocab_size and algorithm, or the"):
        parse_part(("tokenizer",), {"kind": "sentencepiece", "path": "a.model", "vocab_size": 400})

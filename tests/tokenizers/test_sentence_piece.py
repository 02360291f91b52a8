"""SentencePiece models: the library's ids for any text, its decoding, and what its files lack."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import MissingExtra, TokenizerError
from weft.data import embedded_corpus
from weft.tokenizers import AddedToken, SentencePieceTokenizer, load_tokenizer, train_sentence_piece
from weft.tokenizers.sentence_piece import Prefix
from weft.tokenizers.sentence_piece_model import ModelFacts, read_model_facts

LINES = [line for text in embedded_corpus(max_bytes=30_000).texts() for line in text.split("\n") if line]
TEXT = st.text(st.sampled_from("the self. \n▁é世😀<s>ﬁ"), max_size=30)


def model(**options: Any) -> bytes:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=written, vocab_size=420, minloglevel=3, num_threads=1,
        **{"byte_fallback": True, **options},
    )  # fmt: skip
    return written.getvalue()


MODELS = {
    "bpe": model(model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False),
    "unigram": model(model_type="unigram"),
    "unknown": model(model_type="unigram", byte_fallback=False),
    "no prefix": model(model_type="bpe", add_dummy_prefix=False, remove_extra_whitespaces=False),
    "symbols": model(model_type="bpe", user_defined_symbols=["<sep>", "▁self"], control_symbols=["<turn>"]),
}
ALL = {name: SentencePieceTokenizer(content) for name, content in MODELS.items()}
LIBRARY = {name: sentencepiece.SentencePieceProcessor(model_proto=content) for name, content in MODELS.items()}
BY_NAME = pytest.mark.parametrize("name", MODELS)


@settings(max_examples=120, deadline=None)
@given(TEXT)
def test_ids_and_text_are_the_librarys(text: str) -> None:
    for name, tokenizer in ALL.items():
        ids = LIBRARY[name].encode(text)
        assert tokenizer.encode(text) == ids, name
        assert tokenizer.decode(ids) == LIBRARY[name].decode(ids), name


@settings(max_examples=80, deadline=None)
@given(TEXT, TEXT)
def test_every_byte_of_the_source_is_counted_once(text: str, other: str) -> None:
    for name, tokenizer in ALL.items():
        for source, measured in zip([text, other], tokenizer.measure_many([text, other]), strict=True):
            assert measured.ids.tolist() == tokenizer.encode(source)
            assert (measured.byte_lengths >= 0).all()
            assert measured.byte_lengths.sum() == (len(source.encode()) if measured.ids.size else 0), name


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_ids_decode_as_the_librarys_and_streams_equal_them_at_every_cut(data: st.DataObject) -> None:
    for name, tokenizer in ALL.items():
        library = LIBRARY[name]
        whole = [i for i in range(library.get_piece_size()) if not library.is_byte(i)]
        ids = data.draw(st.lists(st.sampled_from(whole), max_size=8))
        assert tokenizer.decode(ids) == library.decode(ids), name
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=8))
        for cut in range(len(ids) + 1):
            stream = tokenizer.stream()
            assert "".join(map(stream.push, ids[:cut])) + stream.finish() == tokenizer.decode(ids[:cut]), name


def test_a_model_that_normalises_nothing_gives_every_text_back() -> None:
    for text in ("  the  self\n 世😀 ", "", " ", "a"):
        assert ALL["bpe"].decode(ALL["bpe"].encode(text)) == text
    assert ALL["bpe"].measure("the é").byte_lengths.sum() == 6


def test_control_symbols_are_special_and_user_defined_ones_are_text() -> None:
    tokenizer = ALL["symbols"]
    turn, sep = (LIBRARY["symbols"].piece_to_id(piece) for piece in ("<turn>", "<sep>"))
    assert tokenizer.special_tokens == {"<s>": 1, "</s>": 2, "<turn>": turn}
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unknown) == (1, 2, "<unk>")
    assert turn not in tokenizer.encode("a<turn>b") and sep in tokenizer.encode("a<sep>b")
    assert tokenizer.encode("a<turn>", specials=True) == [*tokenizer.encode("a"), turn]
    assert tokenizer.decode([*tokenizer.encode("a"), turn]) == "a"
    assert tokenizer.decode([*tokenizer.encode("a"), turn], specials=True) == "a<turn>"


def test_added_tokens_have_ids_behind_the_model() -> None:
    added = [AddedToken("<pad>", 420), AddedToken("[tool]", 421, special=False, rstrip=True)]
    tokenizer = SentencePieceTokenizer(MODELS["bpe"], added=added, eos="<pad>")
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (422, 420)
    the = tokenizer.encode("the")
    assert tokenizer.encode("the[tool]  the<pad>") == [*the, 421, *ALL["bpe"].encode("the<pad>")]
    assert tokenizer.encode("the<pad>", specials=True) == [*the, 420]
    assert tokenizer.decode([421, 420], specials=True) == "[tool]<pad>"
    for text in ("the[tool]  the", "[tool]", "é[tool]世 ", " [tool] "):
        measured = tokenizer.measure(text)
        assert measured.ids.tolist() == tokenizer.encode(text)
        assert measured.byte_lengths.sum() == len(text.encode())


def test_the_models_own_space_goes_where_it_is_told() -> None:
    """Before every stretch, before the text alone (transformers' LlamaTokenizer), or nowhere."""
    always, first, never = (SentencePieceTokenizer(MODELS["bpe"], added=[AddedToken("[x]", 420, special=False)],
                                                   prefix=prefix) for prefix in ("always", "first", "never"))
    bare = sentencepiece.SentencePieceProcessor(
        model_proto=model(model_type="bpe", normalization_rule_name="identity", remove_extra_whitespaces=False,
                          add_dummy_prefix=False)).encode
    spaced = ALL["bpe"].encode
    assert spaced("the") != bare("the")
    for text in ("the</s>the", "the[x]the"):
        middle = 2 if "</s>" in text else 420
        assert always.encode(text, specials=True) == [*spaced("the"), middle, *spaced("the")]
        assert first.encode(text, specials=True) == [*spaced("the"), middle, *bare("the")]
        assert never.encode(text, specials=True) == [*bare("the"), middle, *bare("the")]
    assert first.encode("<s>the", specials=True) == [1, *bare("the")]
    assert first.encode("<s> the", specials=True) == [1, *bare(" the")] == [1, *spaced("the")]
    assert first.decode(first.encode("<s>the", specials=True), specials=True) == "<s>the"
    assert never.decode(never.encode("the")) == "the"


@pytest.mark.parametrize("prefix", ["first", "never"])
def test_where_the_space_goes_is_kept_and_lengths_add_up(prefix: Prefix, tmp_path: Path) -> None:
    for name in ("bpe", "unigram"):
        tokenizer = SentencePieceTokenizer(MODELS[name], added=[AddedToken("[x]", 420, special=False)], prefix=prefix)
        tokenizer.save(tmp_path / name)
        loaded = load_tokenizer(tmp_path / name)
        assert loaded.fingerprint() == tokenizer.fingerprint() != SentencePieceTokenizer(
            MODELS[name], added=[AddedToken("[x]", 420, special=False)]).fingerprint()
        for text in ("the[x]the", "[x]the ﬁ", "é[x] 世[x]the"):
            measured = loaded.measure(text)
            assert measured.ids.tolist() == tokenizer.encode(text)
            assert measured.byte_lengths.sum() == len(text.encode())


def test_white_space_that_gives_no_token_is_counted_with_the_token_after_it() -> None:
    tokenizer = SentencePieceTokenizer(MODELS["unigram"], added=[AddedToken("[x]", 420, special=False)])
    measured = tokenizer.measure("  [x]  ")
    assert (measured.ids.tolist(), measured.byte_lengths.tolist()) == ([420], [7])


@BY_NAME
def test_saved_models_load_as_they_were(name: str, tmp_path: Path) -> None:
    tokenizer = SentencePieceTokenizer(MODELS[name], added=[AddedToken("<pad>", 420)], eos="<pad>")
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint() == tokenizer.fingerprint() != ALL[name].fingerprint()
    assert (tmp_path / "tokenizer.model").read_bytes() == MODELS[name]
    assert loaded.encode("the self<pad>", specials=True) == tokenizer.encode("the self<pad>", specials=True)


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_training_loses_nothing_and_is_the_same_every_time(algorithm: str) -> None:
    tokenizer = train_sentence_piece(LINES, 400, algorithm=algorithm)
    assert tokenizer.vocab_size == 400
    assert tokenizer.decode(tokenizer.encode("  for  é世\n\tx ")) == "  for  é世\n\tx "
    assert train_sentence_piece(LINES, 400, algorithm=algorithm).fingerprint() == tokenizer.fingerprint()


def test_a_size_that_the_text_cannot_fill_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"vocab_size: SentencePiece cannot learn 400 pieces .*too high.* Request"):
        train_sentence_piece(["ab ab"], 400, algorithm="bpe")
    with pytest.raises(TokenizerError, match=r"cannot learn 400 pieces from the training text \(it is empty\)"):
        train_sentence_piece([""], 400, algorithm="bpe")


@pytest.mark.parametrize("content", [b"", b"x", b"{}", MODELS["bpe"][:900]])
def test_a_damaged_model_is_refused(content: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.model: not a SentencePiece model \(.*\)\. Give the \.model"):
        SentencePieceTokenizer(content)


def test_a_token_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.model: the token '<x>' is not in the vocabulary of 420 ids"):
        SentencePieceTokenizer(MODELS["bpe"], bos="<x>")


def test_ids_alone_do_not_tell_the_bytes() -> None:
    with pytest.raises(TokenizerError, match=r"ids: the ids of a SentencePiece model do not determine .* measure\("):
        ALL["bpe"].byte_lengths([5])


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingExtra, match=r"a SentencePiece model needs .*pip install 'weft\[sentencepiece\]'"):
        SentencePieceTokenizer(MODELS["bpe"])


def test_facts_of_the_file_are_read() -> None:
    assert read_model_facts(MODELS["unigram"]) == ModelFacts(True, True, False)
    assert read_model_facts(MODELS["no prefix"]) == ModelFacts(False, False, False)
    assert read_model_facts(b"") == ModelFacts()


@pytest.mark.parametrize("content", [b"\x0a\x05ab", b"\x80", b"\xff" * 11, b"\x0b"])
def test_what_is_no_protocol_buffer_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"beyond the message|ten bytes|wire type"):
        read_model_facts(content)


def test_a_model_that_rewrites_what_it_decodes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rules.tsv").write_text("61\t62\n")
    content = model(denormalization_rule_tsv=str(tmp_path / "rules.tsv"))
    assert read_model_facts(content).denormalizes
    with pytest.raises(TokenizerError, match=r"tokenizer\.model: the model rewrites decoded text .* Train"):
        SentencePieceTokenizer(content)

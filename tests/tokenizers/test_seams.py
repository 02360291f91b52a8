"""A long text in stretches gives the tokens and bytes of the whole, whatever the tokenizer, and what is learned from it
in stretches is what is learned from it whole."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from weft.data import embedded_corpus
from weft.tokenizers import BPETokenizer, ByteTokenizer, CharacterTokenizer, FileTokenizer, Tokenizer, WordTokenizer
from weft.tokenizers.rwkv_world import RWKVWorldTokenizer
from weft.tokenizers.sentence_piece import SentencePieceTokenizer, train_sentence_piece
from weft.tokenizers.split_points import CONTEXT, measured, sliced, stretches, words_apart
from weft.tokenizers.unigram import UnigramTokenizer
from weft.tokenizers.wordpiece import WordPieceTokenizer

SOURCE = list(embedded_corpus(max_bytes=60_000).texts())
PROSE = ["The king's daughter wasn't 12,345 years old; naïve façade, Ünï 世界 is here.\nA second line\r\n\r\nthere.\n"]
LEARNED = [*SOURCE, *PROSE * 20]
NASTY = ["word", "a", "I'll", "x1", "12345", "3.14", "世界", "é", "e\u0301", "😀", "▁", "Ġ", "<|endoftext|>", "[SEP]",
         "</s>", "naïve", "...", "--", "_", "ſ", "ﬁ", "\u00a0", "\u200b", "٣"]
SPACES = [" ", " ", " ", "\n", "\n", "  ", "\n\n", "\t", "\r\n", " \n ", "   ", ""]
SIZE = 2 * CONTEXT


def llama_like(prepend: bool) -> FileTokenizer:
    """BPE as Llama's file has it: spaces are marks, and nothing cuts the text before the merges."""
    text = "▁".join("".join(PROSE * 3).split(" "))
    pieces = sorted({text[i:i + n] for i in range(len(text) - 6) for n in (1, 2, 3) if "▁" not in text[i:i + n][1:]},
                    key=lambda piece: (len(piece), piece))
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {piece: 256 + place for place, piece in enumerate(pieces)}
    merges = [(piece[:-1], piece[-1]) for piece in pieces if len(piece) > 1]
    library = tokenizers.Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True))
    mark = normalizers.Replace(" ", "▁")
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), mark]) if prepend else mark
    end = [decoders.Strip(" ", 1, 0)] if prepend else []
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *end])
    return FileTokenizer(library.to_str())


def file_of(normalizer: normalizers.Normalizer | None, pre_tokenizer: pre_tokenizers.PreTokenizer) -> FileTokenizer:
    """Byte-level BPE with another way of normalising and cutting."""
    declared = json.loads(BPETokenizer.train(LEARNED, 500).files()["tokenizer.json"])
    library = tokenizers.Tokenizer.from_str(json.dumps(declared))
    library.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        library.normalizer = normalizer
    return FileTokenizer(library.to_str())


def world() -> RWKVWorldTokenizer:
    pieces = [bytes([byte]) for byte in range(256)] + [b" the", b"he", b"word ", b"x1", b"\n\n", "世界".encode()]
    lines = [f"{place} {piece!r} {len(piece)}\n" for place, piece in enumerate(pieces, 1)]
    return RWKVWorldTokenizer("".join(lines).encode())


QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": ByteTokenizer,
    "characters": lambda: CharacterTokenizer.train([*NASTY, *SPACES], unknown=True),
    "words": lambda: WordTokenizer.train(LEARNED),
    "lines": lambda: WordTokenizer.train(LEARNED, end_of_line=True),
    "bpe": lambda: BPETokenizer.train(LEARNED, 600),
    "wordpiece": lambda: WordPieceTokenizer.train(LEARNED, 600, lowercase=True),
    "unigram": lambda: UnigramTokenizer.train(LEARNED, 600),
    "sentencepiece unigram": lambda: train_sentence_piece(LEARNED, 600, algorithm="unigram"),
    "sentencepiece bpe": lambda: train_sentence_piece(LEARNED, 600, algorithm="bpe"),
    "sentencepiece first": lambda: SentencePieceTokenizer(
        train_sentence_piece(LEARNED, 500, algorithm="bpe").files()["tokenizer.model"], prefix="first"),
    "sentencepiece never": lambda: SentencePieceTokenizer(
        train_sentence_piece(LEARNED, 500, algorithm="bpe").files()["tokenizer.model"], prefix="never"),
    "llama": lambda: llama_like(prepend=True),
    "gemma": lambda: llama_like(prepend=False),
    "qwen": lambda: file_of(normalizers.NFC(), pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(QWEN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])),
    "prefix space": lambda: file_of(None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "rwkv world": world,
}


@pytest.fixture(scope="module", params=MAKERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return MAKERS[request.param]()


def agree(tokenizer: Tokenizer, text: str, *, size: int = SIZE) -> int:
    """Compare a text in stretches with the whole; the number of stretches."""
    found = list(stretches(tokenizer, sliced(text, 100), size=size))
    assert sum(stretch.skipped + len(stretch.text) for stretch in found) == len(text)
    parts, whole = measured(tokenizer, found), tokenizer.measure(text)
    ids, lengths = zip(*((part.ids, part.byte_lengths) for part in parts), strict=True)
    np.testing.assert_array_equal(np.concatenate(ids), whole.ids)
    apart = np.cumsum(np.concatenate(lengths)) - np.cumsum(whole.byte_lengths)
    # Where decoding does not give the text back, what no id expresses has its bytes at the first of its tokens, and a
    # stretch may be given back where the whole is not: then the bytes agree up to every seam.
    exact = tokenizer.decode(whole.ids) == text
    seams = np.cumsum([len(each) for each in ids]) - 1
    assert not apart[slice(None) if exact else seams[seams >= 0]].any()
    return len(found)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 8))
def test_stretches_give_the_tokens_and_bytes_of_the_whole(tokenizer: Tokenizer, seed: int, rare: int) -> None:
    draw = random.Random(seed)
    words = [*NASTY, *["the", "king", "said", "that", "a", "word", "follows", "here"] * rare]
    agree(tokenizer, "".join(draw.choice(words) + draw.choice(SPACES) for _ in range(700)))


def test_a_real_text_is_cut_about_as_often_as_wanted(tokenizer: Tokenizer) -> None:
    text = "".join(SOURCE)[:30_000].replace("▁", "")
    assert agree(tokenizer, text) >= 0.5 * len(text) / SIZE


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "words"])
@pytest.mark.parametrize("text", ["x" * 3000, " \n" * 1500, "", "a", "世界。" * 800, "日本 " * 900, "A" + " " * 3000])
def test_a_text_without_a_place_to_cut_is_encoded_whole(kind: str, text: str) -> None:
    tokenizer = MAKERS[kind]()
    assert len(list(stretches(tokenizer, sliced(text), size=SIZE))) <= max(1, len(text) // CONTEXT)
    if text:
        agree(tokenizer, text)


def test_a_vocabulary_that_joins_two_words_is_never_cut_between_them() -> None:
    """Whose merges cross a space: cut there, its tokens would be others."""
    vocab = {piece: place for place, piece in enumerate(["a", "b", " ", "\n", "a ", "a b", "b\n"])}
    library = tokenizers.Tokenizer(models.BPE(vocab, [("a", " "), ("a ", "b"), ("b", "\n")]))
    tokenizer = FileTokenizer(library.to_str())
    assert tokenizer.may_join("a", " ") and tokenizer.may_join("b", "\n")
    assert not tokenizer.may_join("a", "\n") and not tokenizer.may_join("b", " ")
    text = "a b\na\nb " * 400
    assert agree(tokenizer, text) > 1
    assert all(stretch.text[-1] + text[0] != "a " for stretch in stretches(tokenizer, [text], size=SIZE))


def test_a_normaliser_that_strips_the_text_is_encoded_whole() -> None:
    stripping = file_of(normalizers.Strip(), pre_tokenizers.ByteLevel(add_prefix_space=False))
    spaced = "one word after another " * 200
    assert agree(stripping, spaced) == 1, "a space before a stretch would be lost, and no line ends"


def test_a_tokenizer_that_does_not_say_is_encoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteTokenizer, "may_join", Tokenizer.may_join)
    assert agree(ByteTokenizer(), "one word after another " * 200) == 1


@pytest.mark.parametrize("skip", [False, True])
def test_words_apart_are_the_text_and_nothing_else(skip: bool) -> None:
    text = "".join(PROSE) * 300
    parts = list(words_apart([text, "", "end"], skip=skip, size=500))
    assert parts[-2:] == ["", "end"]
    assert (" " if skip else "").join(parts[:-2]) == text
    assert len(parts) > 30 and max(map(len, parts)) < 700


@pytest.mark.parametrize("train", [
    lambda texts: BPETokenizer.train(texts, 400), lambda texts: WordPieceTokenizer.train(texts, 400),
    lambda texts: UnigramTokenizer.train(texts, 400), lambda texts: WordTokenizer.train(texts),
    lambda texts: CharacterTokenizer.train(texts)])
def test_what_is_learned_in_stretches_is_what_is_learned_whole(
        train: Callable[[list[str]], Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["".join(PROSE) * 40 + "".join(SOURCE)[:40_000]]
    whole = train(texts).fingerprint()
    monkeypatch.setattr(words_apart, "__kwdefaults__", {"skip": False, "size": 700})
    assert train(texts).fingerprint() == whole


def test_published_files_in_a_folder_are_cut_too(tmp_path: Path) -> None:
    """A file whose spaces no table of bytes gives: the spelling of its tokens says what they join."""
    library = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "a b": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = FileTokenizer(library.to_str())
    assert tokenizer.may_join("a", " ") and not tokenizer.may_join("e", " ")
    assert agree(tokenizer, "the other word \n" * 400) > 1

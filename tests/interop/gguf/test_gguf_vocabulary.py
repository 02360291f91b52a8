"""Tokenizers as keys of a GGUF file: which of llama.cpp's does the same, and why none does."""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Mapping
from typing import Any

import pytest
import sentencepiece

from weft.interop.gguf import pre_tokenizers
from weft.interop.gguf.pre_tokenizers import NAMES, Inexpressible, TokenType, pre_tokenizer
from weft.interop.gguf.target import Vocabulary, vocabulary
from weft.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Conventions,
    FileTokenizer,
    Tokenizer,
    WordPieceTokenizer,
)
from weft.tokenizers.sentence_piece import SentencePieceTokenizer, train_sentence_piece

TEXT = inspect.getsource(json.decoder)
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False}


@pytest.fixture(scope="module")
def bpe() -> BPETokenizer:
    return BPETokenizer.train([TEXT], 300)


def test_files_of_the_first_versions_are_written_as_today_s_are(bpe: BPETokenizer) -> None:
    """GPT-2's published tokenizer.json does not say of which kind its model is, and joins the two halves of a merge."""
    declared = json.loads(bpe.files()["tokenizer.json"])
    first = {"dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
             "fuse_unk": False, "vocab": declared["model"]["vocab"],
             "merges": [" ".join(pair) for pair in declared["model"]["merges"]]}
    found, today = (keys_of(FileTokenizer(json.dumps(declared | {"model": model}), bos=None, eos="<|endoftext|>"))
                    for model in (first, declared["model"]))
    assert found == today and found.keys["tokenizer.ggml.model"] == "gpt2"


@pytest.fixture(scope="module")
def pieces() -> SentencePieceTokenizer:
    return train_sentence_piece([TEXT], 600, algorithm="bpe")


def keys_of(tokenizer: Tokenizer, size: int = 600, **kept: Any) -> Vocabulary:
    return vocabulary(tokenizer, size, kept)


def reason(tokenizer: Tokenizer) -> str:
    found = keys_of(tokenizer)
    assert found.keys == {"tokenizer.ggml.model": "no_vocab"}
    return found.notes[0]


def changed(bpe: BPETokenizer, model: Mapping[str, Any] | None = None, **parts: Any) -> FileTokenizer:
    """The tokenizer with other parts in its file."""
    declared = json.loads(bpe.files()["tokenizer.json"])
    declared["model"].update(model or {})
    return FileTokenizer(json.dumps(declared | parts), bos=None, eos="<|endoftext|>")


def test_byte_level_bpe_is_written_by_merges(bpe: BPETokenizer) -> None:
    keys, declared = keys_of(bpe, 400, pad_token_id=5).keys, json.loads(bpe.files()["tokenizer.json"])
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list) and isinstance(types, list)
    assert {token: place for place, token in enumerate(tokens[:300])} == declared["model"]["vocab"]
    assert tokens[300:302] == ["[PAD300]", "[PAD301]"] and len(tokens) == len(types) == 400
    assert set(types[1:300]) == {TokenType.NORMAL} and set(types[300:]) == {TokenType.UNUSED}
    assert types[0] == TokenType.CONTROL
    assert keys["tokenizer.ggml.merges"] == [" ".join(pair) for pair in declared["model"]["merges"]]
    assert (keys["tokenizer.ggml.model"], keys["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    assert keys["tokenizer.ggml.eos_token_id"] == keys["tokenizer.ggml.bos_token_id"] == 0
    assert keys["tokenizer.ggml.padding_token_id"] == 5
    assert keys["tokenizer.ggml.add_bos_token"] is keys["tokenizer.ggml.add_eos_token"] is False


def test_bytes_are_a_bpe_that_merges_nothing() -> None:
    keys = keys_of(ByteTokenizer(), 257).keys
    tokens = keys["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    assert tokens[ord("a")] == "a" and tokens[ord(" ")] == "Ġ" and tokens[0] == "Ā" and tokens[256] == "<|endoftext|>"
    assert keys["tokenizer.ggml.merges"] == ["☃ ☃"] and "☃" not in tokens


def test_conventions_become_keys(bpe: BPETokenizer) -> None:
    conventions = Conventions(adds_bos=True, end_ids=(0, 7), chat_templates={"default": "{{ a }}", "tools": "{{ b }}"})
    tokenizer = FileTokenizer(bpe.files()["tokenizer.json"], bos="<|endoftext|>", eos="<|endoftext|>",
                              conventions=conventions)
    keys = keys_of(tokenizer).keys
    assert keys["tokenizer.ggml.add_bos_token"] is True
    assert keys["tokenizer.ggml.eot_token_id"] == 7
    assert keys["tokenizer.chat_template"] == "{{ a }}"
    assert keys["tokenizer.chat_template.tools"] == "{{ b }}" and keys["tokenizer.chat_templates"] == ["tools"]


def split(expression: str, *, invert: bool = False) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": expression}, "invert": invert,
           "behavior": "Removed" if invert else "Isolated"}
    return {"type": "Sequence", "pretokenizers": [cut, LEVEL]}


@pytest.mark.parametrize(("declared", "whole", "name"), [
    (LEVEL | {"use_regex": True}, False, "gpt-2"), (split(pre_tokenizers.LLAMA3), True, "llama-bpe"),
    (split(pre_tokenizers.LLAMA3), False, "dbrx"), (split(pre_tokenizers.QWEN2), False, "qwen2"),
    (split(pre_tokenizers.TEKKEN), True, "tekken"), (split(pre_tokenizers.GPT4O, invert=True), False, "gpt-4o"),
    (split(pre_tokenizers.BLOOM), False, "bloom"),
    ({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                            LEVEL | {"use_regex": True}]}, False, "smollm"),
    ({"type": "Sequence", "pretokenizers": [
        {"type": "Punctuation", "behavior": "Contiguous"}, LEVEL | {"use_regex": True},
        {"type": "Digits", "individual_digits": False},
        {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": False}]},
     False, "falcon")])
def test_forms_of_cutting_have_names(declared: dict[str, Any], whole: bool, name: str) -> None:
    assert pre_tokenizer(declared, ignore_merges=whole) == name
    assert name in NAMES.values()


@pytest.mark.parametrize(("declared", "whole", "why"), [
    (LEVEL | {"use_regex": True}, True, "and keeps words that are tokens whole, for which llama.cpp has no name"),
    (split(r"\w+"), False, r"it splits text by '\\\\w\+', for which llama.cpp has no name"),
    (split(r"\w+", invert=True), False, "it splits text by 'Split', for which"),
    (LEVEL, False, "it splits text by nothing, for which"), (None, False, "its BPE is not on bytes"),
    (LEVEL | {"add_prefix_space": True}, False, "it puts a space before a text")])
def test_forms_without_a_name_are_refused(declared: dict[str, Any] | None, whole: bool, why: str) -> None:
    with pytest.raises(Inexpressible, match=why):
        pre_tokenizer(declared, ignore_merges=whole)


def test_what_llama_cpp_does_otherwise_is_told(bpe: BPETokenizer) -> None:
    assert "composes characters (NFC), which llama.cpp does not" in keys_of(
        changed(bpe, normalizer={"type": "NFC"})).notes[0]
    token = {"id": 300, "content": "<x>", "special": False, "lstrip": True, "rstrip": False, "single_word": False,
             "normalized": False}
    declared = json.loads(bpe.files()["tokenizer.json"]) | {"added_tokens": [token]}
    found = keys_of(FileTokenizer(json.dumps(declared)))
    assert "take in the spaces around them or must be whole words ('<x>')" in found.notes[0]
    assert "has no token that ends a document; llama.cpp then uses a fixed id" in found.notes[1]
    types = found.keys["tokenizer.ggml.token_type"]
    assert isinstance(types, list) and types[300] == TokenType.USER_DEFINED


def test_tokenizers_without_a_counterpart_are_not_written(bpe: BPETokenizer) -> None:
    assert "there is no tokenizer, so the file has none; give llama.cpp token ids." in vocabulary(None, 9, {}).notes
    assert "has no tokenizer of the kind 'characters'" in reason(CharacterTokenizer.train(["abc"]))
    assert "has no tokenizer of the kind 'WordPiece' for decoders" in reason(WordPieceTokenizer.train([TEXT], 150))
    assert "it normalises text by Lowercase, which llama.cpp does not. Give llama.cpp token ids." in reason(
        changed(bpe, normalizer={"type": "Lowercase"}))
    assert "its BPE has end_of_word_suffix, which llama.cpp's does not have" in reason(
        changed(bpe, {"end_of_word_suffix": "</w>"}))


def test_sentence_piece_is_written_by_scores(pieces: SentencePieceTokenizer) -> None:
    keys = keys_of(pieces).keys
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    scores = keys["tokenizer.ggml.scores"]
    assert isinstance(tokens, list) and isinstance(types, list) and isinstance(scores, list)
    assert types[:4] == [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, TokenType.BYTE]
    assert tokens[3] == "<0x00>" and scores[259] == 0.0 and scores[260] == -1.0
    assert (keys["tokenizer.ggml.model"], keys["tokenizer.ggml.add_space_prefix"]) == ("llama", True)
    assert (keys["tokenizer.ggml.bos_token_id"], keys["tokenizer.ggml.unknown_token_id"]) == (1, 0)


def test_unigram_models_are_not_written() -> None:
    assert "its model is a unigram model" in reason(train_sentence_piece([TEXT], 360, algorithm="unigram"))


@pytest.mark.parametrize(("options", "why"), [
    ({"byte_fallback": False}, "its model has no bytes to fall back to, without which llama.cpp stops"),
    ({"remove_extra_whitespaces": True}, "its model removes repeated spaces, which llama.cpp does not"),
    ({"normalization_rule_name": "nmt_nfkc"}, "its model normalises characters, which llama.cpp's does not")])
def test_sentence_piece_models_that_do_more_are_not_written(options: dict[str, Any], why: str) -> None:
    usual: dict[str, Any] = {"byte_fallback": True, "remove_extra_whitespaces": False,
                             "normalization_rule_name": "identity"}
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT.split("\n")), model_writer=written,
                                             vocab_size=400, model_type="bpe", minloglevel=3, num_threads=1,
                                             **usual | options)
    assert why in reason(SentencePieceTokenizer(written.getvalue()))


def by_merges(pieces: SentencePieceTokenizer, **parts: Any) -> FileTokenizer:
    """The same vocabulary as the tokenizers library has it: every way to make a piece of two is a merge, by score."""
    found = keys_of(pieces, pieces.vocab_size).keys
    tokens, scores = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.scores"]
    assert isinstance(tokens, list) and isinstance(scores, list)
    vocab = {str(token): place for place, token in enumerate(tokens)}
    normal = sorted(range(259, len(tokens)), key=lambda place: -float(scores[place]))
    merges = [(text[:cut], text[cut:]) for text in (str(tokens[place]) for place in normal)
              for cut in range(1, len(text)) if text[:cut] in vocab and text[cut:] in vocab]
    special = [{"id": place, "content": tokens[place], "special": True, "lstrip": False, "rstrip": False,
                "single_word": False, "normalized": False} for place in range(3)]
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": True, "fuse_unk": True,
             "unk_token": "<unk>"}
    parts = {"pre_tokenizer": METASPACE, **parts}
    return FileTokenizer(json.dumps({"version": "1.0", "added_tokens": special, "model": model | parts.pop("model", {}),
                                     "decoder": None, "normalizer": None, "post_processor": None, **parts}),
                         bos="<s>", eos="</s>")


def test_merges_of_a_sentence_piece_model_are_scores_again(pieces: SentencePieceTokenizer) -> None:
    tokenizer = by_merges(pieces)
    assert tokenizer.encode("def decode(self, s):") == pieces.encode("def decode(self, s):")
    own, theirs = keys_of(pieces), keys_of(tokenizer)
    same = [name for name in own.keys if name != "tokenizer.ggml.scores"]
    assert {name: theirs.keys[name] for name in same} == {name: own.keys[name] for name in same}
    scores, ranks = own.keys["tokenizer.ggml.scores"], theirs.keys["tokenizer.ggml.scores"]
    assert isinstance(scores, list) and isinstance(ranks, list)
    merged = [place for place in range(600) if float(ranks[place]) < 0]
    assert len(merged) > 100
    assert sorted(merged, key=lambda at: -float(ranks[at])) == sorted(merged, key=lambda at: -float(scores[at]))
    assert "a text that begins with a space gets a further one from llama.cpp." in theirs.notes


def test_merges_that_scores_cannot_say_are_refused(pieces: SentencePieceTokenizer) -> None:
    merges = json.loads(by_merges(pieces).files()["tokenizer.json"])["model"]["merges"]
    joined = ["".join(pair) for pair in merges]
    twice = next(place for place, text in enumerate(joined) if joined.count(text) > 1)
    assert "it does not merge" in reason(by_merges(pieces, model={"merges": merges[:twice] + merges[twice + 1:]}))
    moved = [*merges[:twice], *merges[twice + 1:], merges[twice]]
    assert "are not consecutive, so no scores express their order" in reason(by_merges(pieces,
                                                                                          model={"merges": moved}))


def test_what_is_done_before_merging_must_be_what_llama_cpp_does(pieces: SentencePieceTokenizer) -> None:
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    gemma = by_merges(pieces, normalizer=spaces, pre_tokenizer={
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False})
    assert keys_of(gemma).keys["tokenizer.ggml.add_space_prefix"] is False
    prepended = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]}
    found = keys_of(by_merges(pieces, normalizer=prepended, pre_tokenizer=None))
    assert found.keys["tokenizer.ggml.add_space_prefix"] is True and found.notes == ()
    words = METASPACE | {"split": True}
    assert "splits text at spaces before it merges" in reason(by_merges(pieces, pre_tokenizer=words))
    assert "normalises text by NFKC" in reason(by_merges(pieces, normalizer={"type": "NFKC"}))
    assert "text by Whitespace before it merges" in reason(by_merges(pieces, pre_tokenizer={"type": "Whitespace"}))

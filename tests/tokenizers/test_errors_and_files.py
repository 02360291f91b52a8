"""What tokenizers refuse, in which words, and what they write."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from weft.core.config import parse_part
from weft.core.errors import CheckpointError, ConfigError, TokenizerError
from weft.data import embedded_corpus
from weft.tokenizers import (
    BPETokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    load_tokenizer,
    read_tokenizer_json,
)
from weft.tokenizers.config import TokenizerConfig, TokenizerFileConfig, known_tokenizers

TEXTS = embedded_corpus(max_bytes=30_000).texts()
BPE = BPETokenizer.train(TEXTS, 300)
ALL = [ByteTokenizer(), CharacterTokenizer("ab世", unknown=True), CharacterTokenizer("ab世"), BPE]
ADDS_NOTHING = {"adds_bos": False, "adds_eos": False}
BY_NAME = pytest.mark.parametrize("tokenizer", ALL, ids=lambda tokenizer: tokenizer.name)


@BY_NAME
def test_saved_tokenizers_load_as_they_were(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "deeper" / "checkpoint")
    loaded = load_tokenizer(tmp_path / "deeper" / "checkpoint", kinds=known_tokenizers())
    assert type(loaded) is type(tokenizer)
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert loaded.encode("ab世ba") == tokenizer.encode("ab世ba")
    assert (loaded.vocab_size, loaded.bos_id, loaded.eos_id) == (
        tokenizer.vocab_size,
        tokenizer.bos_id,
        tokenizer.eos_id,
    )


def test_fingerprints_tell_tokenizers_apart() -> None:
    others = [CharacterTokenizer("abc"), BPETokenizer.train(TEXTS, 301), BPETokenizer(BPE.files()["tokenizer.json"])]
    prints = [tokenizer.fingerprint() for tokenizer in [*ALL, *others]]
    assert len(set(prints)) == len(prints)
    assert CharacterTokenizer("cba").fingerprint() == CharacterTokenizer("abc").fingerprint()
    assert all(len(found) == 64 for found in prints)


@BY_NAME
def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    message = r"text: the character U\+D800 at position 1 is a lone surrogate.*Read the text with errors='replace'"
    with pytest.raises(TokenizerError, match=message):
        tokenizer.encode("a\ud800")
    with pytest.raises(TokenizerError, match=message):
        tokenizer.measure("a\ud800")


@BY_NAME
@pytest.mark.parametrize("wrong", [-1, 10_000])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, wrong: int) -> None:
    message = rf"ids: id {wrong} at position 1 is outside the vocabulary of {tokenizer.vocab_size} ids\. Decode with"
    with pytest.raises(TokenizerError, match=message):
        tokenizer.decode([0, wrong])
    with pytest.raises(TokenizerError, match=message):
        tokenizer.byte_lengths([0, wrong])
    with pytest.raises(TokenizerError, match=rf"ids: id {wrong} at position 0 is outside"):
        tokenizer.stream().push(wrong)


def test_an_unknown_character_is_refused() -> None:
    message = (
        r"text: the character 'é' \(U\+00E9\) at position 2 is not in the vocabulary of 2 characters\. "
        r"Train the vocabulary on text that has it, or declare an unknown character \(unknown: true\)\."
    )
    with pytest.raises(TokenizerError, match=message):
        CharacterTokenizer("ab").encode("abé")


def test_an_unknown_id_does_not_say_its_bytes() -> None:
    with pytest.raises(TokenizerError, match=r"ids: the id of the unknown character .* measure\(text\)"):
        CharacterTokenizer("ab", unknown=True).byte_lengths([3])


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"characters: the vocabulary is empty\. Train it on text"):
        CharacterTokenizer.train([""])


def test_a_vocabulary_below_the_bytes_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"vocab_size: byte-level BPE needs at least 257 .* received 256\. Raise"):
        BPETokenizer.train(TEXTS, 256)


def test_a_vocabulary_that_the_text_cannot_fill_is_refused() -> None:
    message = (
        r"vocab_size: the training text gives only 260 ids, and 500 are requested\. Give more text, or request at most"
    )
    with pytest.raises(TokenizerError, match=message):
        BPETokenizer.train(["abcd abcd"], 500)


@pytest.mark.parametrize("source", ["", "{}", "[1]", "nonsense"])
def test_what_is_not_a_tokenizer_is_refused(source: str) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer of the tokenizers library .* Give a"):
        BPETokenizer(source)


def test_a_special_token_that_the_file_lacks_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: the token '<bos>' is not in the vocabulary of 300 ids"):
        BPETokenizer(BPE.files()["tokenizer.json"], bos="<bos>")


def test_a_missing_tokenizer_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: the file cannot be read \(No such.* Copy the"):
        read_tokenizer_json(tmp_path)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"weft_tokenizer\.json: the tokenizer's settings cannot be .*No such"):
        load_tokenizer(tmp_path)


def damage(folder: Path, **changes: object) -> None:
    path = folder / "weft_tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_truncated_settings_file_is_refused(tmp_path: Path) -> None:
    BPE.save(tmp_path)
    path = tmp_path / "weft_tokenizer.json"
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(CheckpointError, match=r"settings cannot be read .* Give the folder of a checkpoint"):
        load_tokenizer(tmp_path)


def test_settings_that_are_a_list_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weft_tokenizer.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"settings are a list, not an object\. Give the folder"):
        load_tokenizer(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    BPE.save(tmp_path)
    damage(tmp_path, format=9)
    with pytest.raises(CheckpointError, match=r"format is 9, this Weft reads format 1\. Load it with the version"):
        load_tokenizer(tmp_path)


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    ByteTokenizer().save(tmp_path)
    damage(tmp_path, kind="byte")
    with pytest.raises(CheckpointError, match=r"unknown kind of tokenizer 'byte'\. Did you mean 'bytes'\?"):
        load_tokenizer(tmp_path)


def test_a_missing_part_is_refused(tmp_path: Path) -> None:
    BPE.save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"the tokenizer's files are damaged \(FileNotFound.* Copy the folder"):
        load_tokenizer(tmp_path)


def test_a_truncated_library_file_is_refused(tmp_path: Path) -> None:
    BPE.save(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: not a tokenizer of the tokenizers library"):
        load_tokenizer(tmp_path)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    BPE.save(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(BPETokenizer.train(TEXTS, 301).files()["tokenizer.json"])
    with pytest.raises(CheckpointError, match=r"have changed since they were saved .* a model is only right with"):
        load_tokenizer(tmp_path)


def fit(data: object) -> Tokenizer:
    config = parse_part(("tokenizer",), data)
    assert isinstance(config, TokenizerConfig)
    assert parse_part(("tokenizer",), config.dump()) == config
    return config.fit(TEXTS)


def test_configurations_give_tokenizers(tmp_path: Path) -> None:
    BPE.save(tmp_path)
    assert fit("bytes").fingerprint() == ByteTokenizer().fingerprint()
    assert fit({"kind": "bpe", "vocab_size": 300}).fingerprint() == BPE.fingerprint()
    assert fit({"kind": "characters", "unknown": True}).settings()["unknown"] is True
    end = "<|endoftext|>"
    found = fit({"kind": "file", "path": str(tmp_path / "tokenizer.json"), "bos": end, "eos": end})
    assert (found.files(), found.settings()) == (BPE.files(), {**BPE.settings(), "conventions": ADDS_NOTHING})
    assert TokenizerFileConfig.examples()[0].path == "tokenizer.json"


def test_configurations_refuse_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer of kind 'byte'\. Did you mean 'bytes'\?"):
        parse_part(("tokenizer",), "byte")
    with pytest.raises(ConfigError, match=r"vocab_size: Input should be greater than or equal to 257, got 100"):
        parse_part(("tokenizer",), {"kind": "bpe", "vocab_size": 100})
    with pytest.raises(ConfigError, match=r"unknown key 'vocabsize'\. Did you mean 'vocab_size'\?"):
        parse_part(("tokenizer",), {"kind": "bpe", "vocabsize": 300})


@pytest.mark.parametrize(("name", "told"), [
    ("vocab_size", "Give it to `Tokenizer.__init__` as a field of weft.tokenizers.base.TokenizerFacts"),
    ("keeps_text", "Give it to `Tokenizer.__init__` as a field of weft.tokenizers.base.TokenizerFacts"),
    ("conventions", "Give them to `Tokenizer.__init__`"),
    ("pieces", "Inherit from weft.tokenizers.base.NamesPieces too"),
    ("with_tokens", "Inherit from weft.tokenizers.base.TakesTokens too")])
def test_a_name_that_would_not_be_read_is_refused_with_where_it_belongs(name: str, told: str) -> None:
    """Also the names that tokenizers had before, so that one of that form says what to do."""
    with pytest.raises(TypeError, match=rf"Deaf: {name} would not be read\. {re.escape(told)}"):
        type("Deaf", (Tokenizer,), {name: lambda self: ()})

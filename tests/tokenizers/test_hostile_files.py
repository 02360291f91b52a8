"""Files of tokenizers whose entries are of other kinds than they should be: one error, which names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.core.errors import MOST_LINE, CheckpointError, DataError, TokenizerError
from weft.tokenizers import CharacterTokenizer, Conventions, WordTokenizer, load_tokenizer, read_tokenizer
from weft.tokenizers.byte import ByteTokenizer
from weft.tokenizers.rwkv_world import RWKVWorldTokenizer

TOKEN = {"content": "</s>", "special": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vocab.json").write_text(json.dumps({"</s>": 0, "a": 1, "b": 2, "ab": 3}))
    (tmp_path / "merges.txt").write_text("a b\n")
    return tmp_path


@pytest.mark.parametrize(("file", "entry", "value", "what"), [
    ("tokenizer_config.json", "added_tokens_decoder", 0.5, "added_tokens_decoder is not an object of ids and tokens"),
    ("tokenizer_config.json", "added_tokens_decoder", {"x": TOKEN}, "added_tokens_decoder is not an object of ids"),
    ("tokenizer_config.json", "added_tokens_decoder", {"9" * 5_000: TOKEN}, "added_tokens_decoder is not an object"),
    ("tokenizer_config.json", "added_tokens_decoder", {"0": {}}, "added_tokens_decoder is not an object of ids"),
    ("tokenizer_config.json", "added_tokens_decoder", {"0": {"content": 7}}, "added_tokens_decoder is not an object"),
    ("tokenizer_config.json", "eos_token", [1], "eos_token is neither a text nor an object with one under content"),
    ("tokenizer_config.json", "eos_token", [], "eos_token is neither a text nor an object with one under content"),
    ("tokenizer_config.json", "pad_token", False, "pad_token is neither a text nor an object"),
    ("special_tokens_map.json", "bos_token", {"content": {}}, "bos_token is neither a text nor an object"),
    ("tokenizer_config.json", "additional_special_tokens", [["a"]], "additional_special_tokens is not a list of tok"),
    ("tokenizer_config.json", "additional_special_tokens", 7, "additional_special_tokens is not a list of tokens"),
    ("tokenizer_config.json", "chat_template", [{"name": "a"}], "chat_template is not a list of objects with a name"),
    ("added_tokens.json", "a", "1", "it is not an object of tokens and ids"),
    ("generation_config.json", "eos_token_id", {"a": 1}, "eos_token_id is neither an id nor a list of ids"),
    ("config.json", "bos_token_id", [True], "bos_token_id is neither an id nor a list of ids")])
def test_what_lies_beside_a_vocabulary(file: str, entry: str, value: Any, what: str, folder: Path) -> None:
    assert read_tokenizer(folder).encode("ab") == [3]
    (folder / file).write_text(json.dumps({entry: value}))
    with pytest.raises(TokenizerError, match=rf"{file}: the file cannot be read \({what}"):
        read_tokenizer(folder)


def test_ids_that_are_none(folder: Path) -> None:
    """Files of models without such a token have -1."""
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [-1, 2**40, 0], "bos_token_id": -1}))
    tokenizer = read_tokenizer(folder)
    assert tokenizer.end_ids == (0,) and tokenizer.bos_id is None


def test_two_tokens_of_one_id(folder: Path) -> None:
    (folder / "vocab.json").write_text(json.dumps({"</s>": 0, "a": 1, "b": 2, "ab": 1}))
    with pytest.raises(TokenizerError, match=r"vocab\.json: the vocabulary is damaged: several tokens have one id\."):
        read_tokenizer(folder)


@pytest.mark.parametrize("literal", ["{{1}, {2}}", "(" * 5_000 + ")" * 5_000, "9" * 5_000, "'\\N{"])
def test_literals_of_a_vocabulary(literal: str) -> None:
    with pytest.raises(TokenizerError, match=r"not an RWKV World vocabulary \(line 1 is not a new id from 1"):
        RWKVWorldTokenizer(f"1 {literal} 3\n".encode())


@pytest.mark.parametrize(("name", "value"), [
    ("unknown", [1]), ("unknown", None), ("characters", 7), ("characters", ["a"]), ("added", [1]), ("added", "ab"),
    ("end_of_line", "yes"), ("conventions", {"end_ids": ["a"]}), ("conventions", {"stops": [None]}),
    ("conventions", {"chat_templates": {"a": 1}}), ("conventions", {"adds_bos": 1}), ("conventions", [1])])
def test_settings_of_other_types(name: str, value: Any, tmp_path: Path) -> None:
    kinds = {"unknown": CharacterTokenizer.train(["ab"]), "characters": CharacterTokenizer.train(["ab"]),
             "added": ByteTokenizer(("<a>",)), "end_of_line": WordTokenizer.train(["a b"]),
             "conventions": ByteTokenizer().with_conventions(Conventions(adds_bos=True))}
    kinds[name].save(tmp_path)
    path = tmp_path / "weft_tokenizer.json"
    content = json.loads(path.read_text())
    holder = content if name == "conventions" else content["settings"]
    assert load_tokenizer(tmp_path).fingerprint() == kinds[name].fingerprint() and name in holder
    holder[name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="the tokenizer's files are damaged"):
        load_tokenizer(tmp_path)
    path.write_text(json.dumps({**content, "settings": [1]}))
    with pytest.raises(CheckpointError, match="the tokenizer's files"):
        load_tokenizer(tmp_path)


def test_lines_of_a_message_have_an_end() -> None:
    told = str(DataError(f"the value {'a' * 99_999}.\nMore.", where="b", remedy="Shorten it."))
    assert len(told) < MOST_LINE + 50 and told.startswith("b: the value aaa") and told.endswith("Shorten it.")


def test_a_template_is_no_link_out_of_the_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What it leads to would be saved with the model."""
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("secret")
    (folder / "chat_template.jinja").symlink_to(secret)
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja: .*\(a link to .*secret, out of the folder\)"):
        read_tokenizer(folder)
    (folder / "chat_template.jinja").unlink()
    (folder / "mine").write_text("mine")
    (folder / "chat_template.jinja").symlink_to("mine")
    assert read_tokenizer(folder).conventions.chat_templates == {"default": "mine"}


def test_ids_of_a_vocabulary_are_bounded() -> None:
    for place, what in (("2147483648", "2,147,483,649 ids, and a vocabulary has at most"), ("9" * 5_000, "line 1 is")):
        with pytest.raises(TokenizerError, match=what):
            RWKVWorldTokenizer(f"{place} 'a' 1\n".encode())


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("side", ["single", "pair"])
def test_a_template_with_a_token_that_it_does_not_define(side: str, nested: bool, tmp_path: Path,
                                                         capfd: pytest.CaptureFixture[str]) -> None:
    """The library reads such a file, and ends in a panic at the first text."""
    tokens = {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}
    template: dict[str, Any] = {
        "type": "TemplateProcessing", "special_tokens": tokens,
        **{each: [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                  *([{"Sequence": {"id": "B", "type_id": 1}}] if each == "pair" else [])]
           for each in ("single", "pair")}}
    declared: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "decoder": None,
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {"type": "Sequence", "processors": [template]} if nested else template,
        "model": {"type": "WordLevel", "vocab": {"<s>": 0, "a": 1}, "unk_token": "<s>"}}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(declared))
    assert read_tokenizer(file).encode("a", specials=True) == [1]
    template[side][0]["SpecialToken"]["id"] = "</s>"
    file.write_text(json.dumps(declared))
    with pytest.raises(TokenizerError, match="names '</s>', which is not among its special_tokens"):
        read_tokenizer(file)
    assert "panicked" not in capfd.readouterr().err

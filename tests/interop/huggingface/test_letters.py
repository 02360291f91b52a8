"""What a folder says about generating text, chats and special tokens is written back byte for byte, however it was
written, and anew where it has changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from interop.huggingface.tiny_folders import change_config, stored, write, write_case
from weft import api
from weft.interop.huggingface.loading import LETTERS
from weft.tokenizers import BPETokenizer, Conventions, FileTokenizer

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\r\n{% endfor %}"
TEXTS = {"generation_config.json": '{"temperature": 0.60, "eos_token_id" : [1,2],\t"top_p":9e-1 }',
         "special_tokens_map.json": '{\n    "eos_token": {"content": "<|endoftext|>", "lstrip": false}}',
         "tokenizer_config.json": '{"tokenizer_class":"PreTrainedTokenizerFast","model_max_length":1e30,\n'
                                  '"eos_token":"<|endoftext|>", "unknown_of_ours": "caf\\u00e9"}',
         "chat_template.jinja": TEMPLATE}


def folder_of(path: Path, case: str, **texts: str) -> Path:
    """A folder of a family with a tokenizer and these files."""
    write(path, case)
    vocab = BPETokenizer.train(["text"], 257)
    (path / "tokenizer.json").write_bytes(vocab.files()["tokenizer.json"])
    for name, text in {**TEXTS, **texts}.items():
        (path / name).write_bytes(text.encode())
    return path


def wide(path: Path, case: str) -> Path:
    """The same with as many ids as the tokenizer has."""
    found = stored()[case]
    shapes = {name: [257, *shape[1:]] if shape and shape[0] == found["config"]["vocab_size"] else shape
              for name, shape in found["shapes"].items()}
    folder_of(path, case)
    write_case(path, {**found, "shapes": shapes})
    change_config(path, vocab_size=257, eos_token_id=1)
    return path


@pytest.mark.parametrize("case", ["llama", "gpt2", "qwen3", "mamba"])
def test_files_are_written_back_to_the_letter_directly_and_by_way_of_a_checkpoint(tmp_path: Path, case: str) -> None:
    source = wide(tmp_path / "a", case)
    api.convert(source, tmp_path / "b", to="hf")
    api.convert(source, tmp_path / "c", to="weft")
    api.convert(tmp_path / "c", tmp_path / "d", to="hf")
    for folder in "bd":
        for name in TEXTS:
            assert (tmp_path / folder / name).read_bytes() == (source / name).read_bytes(), f"{folder}/{name}"


def test_a_run_that_starts_from_a_folder_writes_its_files_back_after_resuming_too(tmp_path: Path) -> None:
    source = wide(tmp_path / "a", "llama")
    (tmp_path / "text.txt").write_text("some words to go on with, and more of them. " * 40)
    run = {"start": str(source), "data": {"path": str(tmp_path / "text.txt")},
           "training": {"steps": 1, "batch_size": 2, "context": 8}, "report": {"eval_batches": 1}}
    api.train(run, out=tmp_path / "run")
    api.train(run, ["training.steps=2"], out=tmp_path / "run", resume=True)
    api.convert(tmp_path / "run", tmp_path / "b", to="hf")
    for name in TEXTS:
        assert (tmp_path / "b" / name).read_bytes() == (source / name).read_bytes(), name
    api.convert(source, tmp_path / "direct", to="hf")
    before, after = (json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("direct", "b"))
    assert before == after, "the run lost a key of the configuration"


def test_what_has_changed_is_written_anew(tmp_path: Path) -> None:
    loaded = api.load(wide(tmp_path / "a", "llama"))
    assert set(loaded.facts[LETTERS]["texts"]) == set(TEXTS)
    hot = replace(loaded, facts={**loaded.facts, "generation": {"temperature": 1.5}})
    api.convert(hot, tmp_path / "b", to="hf")
    assert json.loads((tmp_path / "b/generation_config.json").read_text()) == {"temperature": 1.5}
    api.convert(loaded, tmp_path / "weft", to="weft")
    kept = api.load(tmp_path / "weft")
    assert kept.tokenizer is not None
    framed = BPETokenizer.train(["other words"], 257)
    plain = FileTokenizer(framed.files()["tokenizer.json"], eos="<|endoftext|>",
                          conventions=Conventions(adds_bos=False))
    for name, other in (("c", framed), ("d", plain)):  # around whose texts a token stands, and none
        api.convert(replace(kept, tokenizer=other), tmp_path / name, to="hf")
        assert "unknown_of_ours" not in (tmp_path / name / "tokenizer_config.json").read_text()
        assert not (tmp_path / name / "special_tokens_map.json").exists()


def test_a_template_in_the_settings_is_not_written_twice(tmp_path: Path) -> None:
    source = wide(tmp_path / "a", "llama")
    (source / "chat_template.jinja").unlink()
    inside = json.dumps({"eos_token": "<|endoftext|>", "chat_template": TEMPLATE})
    (source / "tokenizer_config.json").write_text(inside)
    api.convert(source, tmp_path / "b", to="weft")
    api.convert(tmp_path / "b", tmp_path / "c", to="hf")
    assert (tmp_path / "c/tokenizer_config.json").read_text() == inside
    assert not (tmp_path / "c/chat_template.jinja").exists()
    again = api.load(tmp_path / "c").tokenizer
    assert again is not None and again.conventions.chat_templates == {"default": TEMPLATE}


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    source = wide(tmp_path / "a", "llama")
    (tmp_path / "secret").write_text("{}")
    (source / "added_tokens.json").symlink_to(tmp_path / "secret")
    assert "added_tokens.json" not in api.load(source).facts[LETTERS]["texts"]

"""What generation_config.json and chat templates say is carried over whole, and every stop token is honoured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interop.huggingface.test_writing import model_of
from interop.huggingface.tiny_folders import change_config, write
from weft import api
from weft.checkpoints import save_checkpoint
from weft.interop.gguf.vocabulary import vocabulary
from weft.interop.huggingface.text import end_ids, generation_of
from weft.tokenizers import BPETokenizer, Conventions, FileTokenizer

SAID: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": [1, 2], "temperature": 0.6, "top_p": 0.9, "do_sample": True,
                        "transformers_version": "5.0.0"}


def folder_with(path: Path, **content: Any) -> Path:
    write(path)
    change_config(path, eos_token_id=1)
    (path / "generation_config.json").write_text(json.dumps(content or SAID))
    return path


def said_in(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "generation_config.json").read_text())
    return found


def test_all_of_generation_config_is_written_back(tmp_path: Path) -> None:
    source = folder_with(tmp_path / "a")
    api.convert(source, tmp_path / "b", to="hf")
    assert said_in(tmp_path / "b") == SAID
    api.convert(source, tmp_path / "c", to="weft")
    api.convert(tmp_path / "c", tmp_path / "d", to="hf")
    assert said_in(tmp_path / "d") == SAID
    assert json.loads((tmp_path / "d" / "config.json").read_text())["eos_token_id"] == 1, "config.json keeps its own"


def test_gguf_says_what_it_has_no_room_for(tmp_path: Path) -> None:
    notes = api.convert(folder_with(tmp_path / "a"), tmp_path / "m.gguf", to="gguf").notes
    assert "generation_config.json sets do_sample, temperature, top_p, which the file cannot hold: give them to " \
           "llama.cpp." in notes
    silent = folder_with(tmp_path / "b", eos_token_id=1)
    assert not any("generation_config" in note for note in api.convert(silent, tmp_path / "n.gguf", to="gguf").notes)


def test_a_folder_without_the_file_gets_the_ids(tmp_path: Path) -> None:
    plain = BPETokenizer.train(["some text to learn from"], 259)
    several = FileTokenizer(plain.files()["tokenizer.json"], eos="<|endoftext|>", conventions=Conventions(end_ids=(7,)))
    kept = {"eos_token_id": plain.eos_id}
    assert generation_of({}, kept, plain) == {"_from_model_config": True, "eos_token_id": plain.eos_id}
    assert generation_of({}, kept, several) == {"_from_model_config": False, "eos_token_id": [plain.eos_id, 7]}


def test_every_stop_token_ends_a_generation_without_a_tokenizer(tmp_path: Path) -> None:
    loaded = api.load(folder_with(tmp_path / "a", eos_token_id=[1]))
    free = api.generate(loaded, [[3, 4, 5]], max_new_tokens=6, ends=api.Ends(at_end=False)).rows[0].tokens
    place = max(map(free.index, free))
    assert len(free) == 6 and place > 0, "not one token alone"
    ending = replace(loaded, facts={**loaded.facts, "generation": {"eos_token_id": [9_000, free[place]]}})
    assert end_ids(ending.facts, 13) == (free[place],), "no id that the model lacks"
    assert api.generate(ending, [[3, 4, 5]], max_new_tokens=6).rows[0].tokens == free[:place + 1]
    assert end_ids({"kept": {"eos_token_id": 4}}, 13) == (4,) and end_ids({}, 13) == ()


@pytest.mark.parametrize(("more", "roles", "noted"), [
    ((), {}, ""), ((7,), {"eot": 7}, ""), ((7, 8), {"eot": 7, "eom": 8}, ""),
    ((7, 8, 9, 10), {"eot": 7, "eom": 8}, "the file has room for 3 ids that end a generation; configure llama.cpp "
                                          "to stop also at 9, 10.")])
def test_gguf_has_room_for_three_ends(more: tuple[int, ...], roles: dict[str, int], noted: str) -> None:
    source = BPETokenizer.train(["some text to learn from"], 259).files()["tokenizer.json"]
    found = vocabulary(FileTokenizer(source, eos="<|endoftext|>", conventions=Conventions(end_ids=more)), 259, {})
    assert {role: found.keys[f"tokenizer.ggml.{role}_token_id"] for role in ("eot", "eom")
            if f"tokenizer.ggml.{role}_token_id" in found.keys} == roles
    assert (noted in found.notes) if noted else not any("room for" in note for note in found.notes)


def test_chat_templates_come_along(tmp_path: Path) -> None:
    templates = {"default": "{{ messages[0].content }}", "tools": "{{ tools }}"}
    plain = BPETokenizer.train(["some text to learn from"], 259)
    tokenizer = FileTokenizer(plain.files()["tokenizer.json"], eos="<|endoftext|>",
                              conventions=Conventions(adds_bos=False, chat_templates=templates))
    save_checkpoint(tmp_path / "a", model_of(), tokenizer)
    api.convert(tmp_path / "a", tmp_path / "b", to="hf")
    api.convert(tmp_path / "b", tmp_path / "c", to="hf")
    for name in "bc":
        again = api.load(tmp_path / name).tokenizer
        assert again is not None
        assert again.conventions.chat_templates == templates and again.conventions.adds_bos is False


def test_a_cast_is_compared_with_the_model_in_its_own_dtype(tmp_path: Path) -> None:
    write(tmp_path / "a")
    loaded = api.load(tmp_path / "a")
    tokens = api.score(loaded, [[1, 2, 3]], logits=True)
    done = api.convert(loaded, tmp_path / "b", to="hf", dtype="bfloat16")
    assert (done.source_dtype, done.dtype, done.difference) == ("float32", "bfloat16", 0.0)
    assert done.cast is not None and done.largest is not None and 1e-3 < done.cast < 0.1 * done.largest
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {api.require_dtype("float32")}
    again = api.score(loaded, [[1, 2, 3]], logits=True)
    assert tokens.logits is not None and again.logits is not None
    assert tokens.logits[0].equal(again.logits[0]), "the caller's own model is as it was"
    same = api.convert(tmp_path / "a", tmp_path / "c", to="weft", dtype="float32")
    assert (same.cast, same.source_dtype) == (None, None)

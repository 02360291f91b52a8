"""What generation_config.json and chat templates say is carried over whole, and every stop token is honoured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from interop.huggingface.test_writing import model_of
from interop.huggingface.tiny_folders import change_config, write
from weft import api
from weft.checkpoints import save_checkpoint
from weft.cli.main import app
from weft.interop.gguf.target import vocabulary
from weft.interop.huggingface.generation import end_ids, generation_of
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


def greedy(path: Path, **options: float) -> list[int]:
    """Tokens of a greedy text of the command, whose options stand behind the file's settings."""
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    rows = str(path / "rows.json")
    done = CliRunner().invoke(app, ["generate", str(path), "--rows", rows, "--greedy", "--json", *words])
    assert done.exit_code == 0, done.output
    tokens: list[int] = json.loads(done.stdout)["rows"][0]["tokens"]
    return tokens


def test_settings_of_a_folder_are_the_defaults_and_options_win(tmp_path: Path) -> None:
    source = folder_with(tmp_path / "a", repetition_penalty=3.5, max_new_tokens=9)
    (source / "rows.json").write_text("[[3, 4, 5]]")
    plain, penalised = (api.generate(source, [[3, 4, 5]], max_new_tokens=9, sampling=api.Sampling(
        0.0, repetition_penalty=penalty)).rows[0].tokens for penalty in (1.0, 3.5))
    assert plain != penalised
    with pytest.warns(UserWarning, match="note: generation_config.json sets repetition_penalty 3.5, max_new_tokens 9; "
                                         "options win over it."):
        assert api.generate(source, [[3, 4, 5]]).rows[0].tokens == penalised
    assert greedy(source) == list(penalised) and greedy(source, repetition_penalty=1) == list(plain)
    assert greedy(source, max_new_tokens=4) == list(penalised[:4])
    api.convert(source, tmp_path / "b", to="weft")
    assert api.decoding_defaults(tmp_path / "b")[:2] == (api.Sampling(0.0, repetition_penalty=3.5), 9)


@pytest.mark.parametrize(("said", "options", "sampling", "line"), [
    ({"do_sample": True, "temperature": 0.6, "top_p": 0.9, "cache_implementation": "hybrid", "num_beams": 1}, {},
     api.Sampling(0.6, top_k=50, top_p=0.9),
     "note: generation_config.json sets temperature 0.6, top_k 50, top_p 0.9; options win over it."),
    ({"do_sample": True, "temperature": 0.6, "top_k": 0}, {"temperature": 2.0, "min_p": 0.1},
     api.Sampling(2.0, min_p=0.1), ""),
    ({"do_sample": True, "temperature": 0.6}, {"temperature": 0.0}, api.Sampling(0.0), ""),
    ({"do_sample": False, "top_k": 9}, {}, api.Sampling(0.0),
     "note: generation_config.json sets temperature 0.0; options win over it."),
    ({"do_sample": False, "temperature": 0.5}, {"top_k": 4}, api.Sampling(0.5, top_k=4),
     "note: generation_config.json sets temperature 0.5; options win over it."),
    ({"repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "max_length": 40, "use_cache": False}, {},
     api.Sampling(1.0, repetition_penalty=1.1), "note: generation_config.json sets repetition_penalty 1.1; options win "
     "over it; its no_repeat_ngram_size 3, max_length 40 are not followed."),
    ({"temperature": "hot", "top_k": -1}, {}, api.Sampling(),
     "note: generation_config.json: temperature hot, top_k -1 are not followed."),
    ({"bos_token_id": 3, "top_p": 1.0, "num_beams": 1, "min_length": 0}, {}, api.Sampling(), "")])
def test_what_a_file_decides_and_what_it_does_not(said: dict[str, Any], options: dict[str, float],
                                                  sampling: api.Sampling, line: str, tmp_path: Path) -> None:
    loaded = api.load(folder_with(tmp_path / "a", **said))
    assert api.decoding_defaults(loaded, options, draws=True) == (sampling, 200, line)


def test_python_draws_where_the_file_asks_for_it_alone(tmp_path: Path) -> None:
    quiet = api.load(folder_with(tmp_path / "a", temperature=0.5, top_k=3))
    assert api.decoding_defaults(quiet) == (api.Sampling(0.0), 200, ""), "transformers would be greedy here too"
    drawing = api.load(folder_with(tmp_path / "b", do_sample=True, top_k=3))
    assert api.decoding_defaults(drawing)[0] == api.Sampling(1.0, top_k=3)


POWER, GNMT = {"length_formula": "power"}, {"length_formula": "gnmt"}


@pytest.mark.parametrize(("said", "given", "found", "line"), [
    ({}, {}, {"beams": 4, "length_penalty": 0.6, **GNMT}, ""),
    ({"num_beams": 6, "length_penalty": 2, "max_new_tokens": 9, "early_stopping": True}, {},
     {"beams": 6, "length_penalty": 2, "max_new_tokens": 9, **POWER},
     "note: generation_config.json sets num_beams 6, length_penalty 2, max_new_tokens 9; options win over it; its "
     "early_stopping True is not followed."),
    ({"num_beams": 1}, {}, {"beams": 1, "length_penalty": 1.0, **POWER},
     "note: generation_config.json sets num_beams 1; options win over it."),
    ({"num_beams": 6, "length_penalty": 2.0}, {"beams": 2, "length_penalty": 0.5},
     {"beams": 2, "length_penalty": 0.5, **GNMT}, ""),
    ({"num_beams": 6, "length_penalty": 2.0}, {"length_formula": "gnmt", "max_new_tokens": 5},
     {"beams": 6, "length_penalty": 0.6, "max_new_tokens": 5, **GNMT},
     "note: generation_config.json sets num_beams 6; options win over it."),
    ({"num_beams": 0, "length_penalty": -1.0, "temperature": 0.5}, {}, {"beams": 4, "length_penalty": 0.6, **GNMT},
     "note: generation_config.json: length_penalty -1.0 is not followed.")])
def test_what_a_file_decides_of_a_translation(said: dict[str, Any], given: dict[str, Any], found: dict[str, Any],
                                              line: str, tmp_path: Path) -> None:
    loaded = api.load(folder_with(tmp_path / "a", **{"bos_token_id": 0, **said}))
    assert api.search_defaults(loaded, api.Search(**given)) == (api.Search(**found), line)


def test_settings_in_config_json_are_those_of_a_folder_without_the_other_file(tmp_path: Path) -> None:
    """As transformers reads them, also in a checkpoint and a folder made from it; with the other file they mean
    nothing."""
    write(tmp_path / "a")
    change_config(tmp_path / "a", eos_token_id=1, repetition_penalty=1.3, num_beams=3, prefix="translate: ",
                  no_repeat_ngram_size=2, temperature=None)
    line = ("note: config.json sets repetition_penalty 1.3; options win over it; its num_beams 3, no_repeat_ngram_size "
            "2 are not followed.")
    api.convert(tmp_path / "a", tmp_path / "b", to="weft")
    for folder in (tmp_path / "a", tmp_path / "b"):
        assert api.decoding_defaults(folder) == (api.Sampling(0.0, repetition_penalty=1.3), 200, line)
    assert api.search_defaults(tmp_path / "b", api.Search())[0].beams == 3
    api.convert(tmp_path / "b", tmp_path / "c", to="hf")
    assert said_in(tmp_path / "c") == {"_from_model_config": False, "bos_token_id": 1, "eos_token_id": 1,
                                       "repetition_penalty": 1.3, "num_beams": 3, "no_repeat_ngram_size": 2}
    sampling, _, line = api.decoding_defaults(tmp_path / "c")
    assert sampling.repetition_penalty == 1.3 and line.startswith("note: generation_config.json sets repetition_pen")
    (tmp_path / "a" / "generation_config.json").write_text('{"eos_token_id": 1}')
    assert api.decoding_defaults(tmp_path / "a") == (api.Sampling(0.0), 200, "")


def test_a_search_by_beams_follows_the_number_of_tokens_alone(tmp_path: Path) -> None:
    loaded = api.load(folder_with(tmp_path / "a", repetition_penalty=1.1, max_new_tokens=7, num_beams=4))
    assert api.decoding_defaults(loaded, beams=True)[1:] == (
        7, "note: generation_config.json sets max_new_tokens 7; options win over it; its repetition_penalty 1.1, "
           "num_beams 4 are not followed.")


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

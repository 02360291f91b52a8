"""``weft data``: prepare, inspect, sample."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from weft.data.prepared import open_prepared
from weft.tokenizers import BPETokenizer, load_tokenizer
from weft.tokenizers.sentence_piece import train_sentence_piece

Weft = Callable[..., Any]
Refuse = Callable[..., str]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 150 records."""
    path = tmp_path_factory.mktemp("text") / "records.jsonl"
    path.write_text("".join(json.dumps({"text": f"record {i} says {i % 9}\nand {i % 5}"}) + "\n" for i in range(150)))
    return path


@pytest.fixture
def folder(weft: Weft, source: Path, tmp_path: Path) -> Path:
    """Prepared from a text."""
    told = weft("data", "prepare", source, "data.validation=0.2", "--tokenizer", "{kind: bpe, vocab_size: 270}",
                "--out", tmp_path / "d")
    assert told.code == 0, told
    assert "train: 100% of" in told.err and "s left" in told.err
    assert told.out.startswith(f"prepared {tmp_path / 'd'}: train ") and told.out.endswith("; BPE-270\n")
    return tmp_path / "d"


def test_a_text_and_a_configuration_give_the_same_folder(weft: Weft, folder: Path, source: Path,
                                                         tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump({"data": {"path": str(source), "validation": 0.2},
                                      "tokenizer": {"kind": "bpe", "vocab_size": 260}}))
    told = weft("data", "prepare", config, "tokenizer.vocab_size=270", "--out", tmp_path / "e", "--json").json()
    one, other = (open_prepared(path).manifest for path in (folder, tmp_path / "e"))
    assert one == other
    assert told["tokens"] == {name: part.tokens for name, part in one.parts.items()} and not told["reused"]
    again = weft("data", "prepare", config, "tokenizer.vocab_size=270", "--out", folder)
    assert again.code == 0 and again.out.startswith("kept ")


def test_presets_and_tokenizer_files_serve_too(weft: Weft, folder: Path, source: Path, tmp_path: Path) -> None:
    told = weft("data", "prepare", "transformer", "data.max_bytes=20000", "tokenizer=characters", "--out",
                tmp_path / "p")
    assert told.code == 0 and "characters-" in told.out, told
    BPETokenizer.train(["a b a b"], 258).save(tmp_path / "t")
    told = weft("data", "prepare", source, "--tokenizer", tmp_path / "t" / "tokenizer.json", "--out", tmp_path / "f")
    assert told.code == 0 and load_tokenizer(tmp_path / "f").vocab_size == 258


def test_a_changed_tokenizer_file_is_noticed(weft: Weft, refused: Refuse, source: Path, tmp_path: Path) -> None:
    command = ("data", "prepare", source, "--tokenizer", tmp_path / "t" / "tokenizer.json", "--out", tmp_path / "f")
    BPETokenizer.train(["a b a b"], 258).save(tmp_path / "t")
    assert weft(*command).out.startswith("prepared ")
    assert weft(*command).out.startswith("kept ")
    shutil.rmtree(tmp_path / "t")
    BPETokenizer.train(["c d c d"], 258).save(tmp_path / "t")
    assert re.search(r"the tokenizer's file has changed \(SHA-256 [0-9a-f]{12}, now [0-9a-f]{12}\)\. Prepare again "
                     r"with --replace", refused(*command))


def test_a_changed_sentencepiece_model_is_noticed(weft: Weft, refused: Refuse, source: Path, tmp_path: Path) -> None:
    command = ("data", "prepare", source, "--tokenizer",
               f"{{kind: sentencepiece, path: {tmp_path / 'tokenizer.model'}}}", "--out", tmp_path / "f")
    text = [json.loads(line)["text"] for line in source.read_text().splitlines()]
    for words in (text, [each.upper() for each in text]):
        made = train_sentence_piece(words, 300, algorithm="bpe")
        (content,) = (data for name, data in made.files().items() if name.endswith(".model"))
        (tmp_path / "tokenizer.model").write_bytes(content)
        if words is text:
            assert weft(*command).out.startswith("prepared ") and weft(*command).out.startswith("kept ")
    assert "the tokenizer's file has changed (SHA-256 " in refused(*command)
    assert weft(*command, "--replace").code == 0


def test_inspect_tells_sizes_tokens_and_documents(weft: Weft, folder: Path, source: Path) -> None:
    told = weft("data", "inspect", folder, "--json").json()
    assert told["vocab_size"] == 270 and not told["verified"] and told["changed_sources"] is None
    parts = {part["name"]: part for part in told["parts"]}
    assert sum(part["documents"] for part in parts.values()) == 150
    texts = [json.loads(line)["text"] for line in source.read_text().splitlines()]
    assert sum(part["text_bytes"] for part in parts.values()) == sum(map(len, texts))
    stream = open_prepared(folder).stream("train")
    ids = np.asarray(stream.tokens)
    token = parts["train"]["frequent"][0]
    assert token["count"] == np.bincount(ids).max()
    assert token["count"] == (ids == token["id"]).sum()
    assert parts["train"]["bytes_per_token"] == pytest.approx(stream.byte_lengths.sum() / len(stream))
    sizes = [document["tokens"] for document in parts["train"]["longest"]]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == 5
    assert parts["train"]["longest"][0]["opening"].startswith("record ")
    shown = weft("data", "inspect", folder).out
    for words in ("150 documents", "BPE-270, 270 ids", "train: most frequent tokens", "validation: longest documents",
                  "--verify compares every byte"):
        assert words in " ".join(shown.split()), words


def test_inspect_verifies_shards_and_sources(weft: Weft, refused: Refuse, source: Path, tmp_path: Path) -> None:
    text = Path(shutil.copy(source, tmp_path / "copy.jsonl"))
    made = tmp_path / "v"
    assert weft("data", "prepare", text, "--out", made).code == 0
    assert weft("data", "inspect", made, "--verify", "--json").json()["verified"]
    assert "every byte of the shards is as prepared; sources unchanged" in " ".join(
        weft("data", "inspect", made, "--verify").out.split())
    text.write_text(text.read_text().replace("says", "said"))
    message = refused("data", "inspect", made, "--verify")
    assert "the text has changed since it was prepared:" in message and "copy.jsonl. Prepare it again" in message
    text.unlink()
    assert "1 no longer there" in " ".join(weft("data", "inspect", made, "--verify").out.split())
    shard = made / "train-00000.tokens.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    assert "train-00000.tokens.bin is truncated" in refused("data", "inspect", made)


def test_sample_shows_windows_and_borders(weft: Weft, folder: Path) -> None:
    told = weft("data", "sample", folder, "-n", "2", "--context", "60", "--seed", "3")
    assert told.code == 0 and "window 2 of 2, 60 tokens" in told.out
    assert "\n──── a document begins ────\nrecord " in told.out
    assert told.out != weft("data", "sample", folder, "-n", "2", "--context", "60", "--seed", "4").out
    windows = weft("data", "sample", folder, "-n", "2", "--context", "60", "--seed", "3", "--json").json()
    tokenizer = load_tokenizer(folder)
    for window in windows:
        assert len(window["tokens"]) == 60
        assert tokenizer.decode(window["tokens"]) == "".join(window["pieces"])
        assert all(piece.startswith("record ") or not piece for piece in window["pieces"][1:])


@pytest.mark.parametrize(("arguments", "message"), [
    (["prepare", "nowhere.txt", "--out", "d"], "source: 'nowhere.txt' is neither a text, a configuration nor a preset"),
    (["prepare", "{source}", "training.steps=3", "--out", "d"],
     "training.steps=3: only data, tokenizer and task can be changed when data is prepared. Leave it out."),
    (["prepare", "{source}", "--tokenizer", "bep", "--out", "d"], "no tokenizer of kind 'bep'. Did you mean 'bpe'?"),
    (["prepare", "{source}", "--tokenizer", "{{a", "--out", "d"], "tokenizer: the value '{a' is not YAML"),
    (["prepare", "{source}", "data.text_field=body", "--out", "e"], "line 1: no field 'body'; the fields are: 'text'."),
    (["inspect", "nowhere"], "nowhere: not a folder of prepared data. Make one with: weft data prepare"),
    (["sample", "nowhere"], "nowhere: not a folder of prepared data."),
    (["sample", "{folder}", "--part", "trian"], "the folder has no part 'trian'. Did you mean 'train'?"),
    (["sample", "{folder}", "-n", "0"], "rows: must be at least 1, received 0. Raise it."),
    (["sample", "{folder}", "--context", "99999999"], "Give more text, or a context of at most"),
])
def test_bad_requests_are_refused(refused: Refuse, folder: Path, source: Path, tmp_path: Path,
                                  monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    given = [word.format(source=source, folder=folder) for word in arguments]
    assert message in refused("data", *given)


def test_a_misspelt_section_is_refused(refused: Refuse, tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("tokenzier: bytes\n")
    message = refused("data", "prepare", config, "--out", tmp_path / "d")
    assert "tokenzier: unknown key 'tokenzier'. Did you mean 'tokenizer'?" in message


def test_a_prepared_folder_trains_evaluates_and_is_protected(weft: Weft, refused: Refuse, folder: Path,
                                                             workplace: Path, tmp_path: Path) -> None:
    told = weft("train", workplace / "tiny.yaml", "tokenizer={kind: bpe, vocab_size: 270}", "data={}",
                f"data.path={folder}", "--out", tmp_path / "run")
    assert told.code == 0, told
    assert weft("eval", tmp_path / "run").code == 0
    assert "the tokens were made with another tokenizer" in refused("eval", workplace / "run", "--data", folder)
    message = refused("train", workplace / "tiny.yaml", "tokenizer=characters", "model.vocab_size=300", "data={}",
                      f"data.path={folder}", "--out", tmp_path / "other")
    assert "tokenizer: {'kind': 'characters', 'unknown': False}, while" in message


def test_the_command_line_prepares_shows_and_trains_on_answers(weft: Weft, tmp_path: Path) -> None:
    source = tmp_path / "sums.jsonl"
    source.write_text("".join(json.dumps({"question": f"{i % 9} plus {i % 7} is ", "answer": f"{i % 9 + i % 7}"}) + "\n"
                              for i in range(200)))
    fields = ("data.text_field=answer", "data.prompt_field=question")
    assert weft("data", "prepare", source, *fields, "--out", tmp_path / "d").code == 0
    shown = weft("data", "inspect", tmp_path / "d", "--verify").out
    assert "scored" in shown and "every byte of the shards is as prepared" in shown
    facts = weft("data", "inspect", tmp_path / "d", "--json").json()["parts"][0]
    assert 0 < facts["scored_tokens"] < facts["tokens"] / 3
    (tmp_path / "run.yaml").write_text(json.dumps({
        "model": {"kind": "decoder", "d_model": 8, "context": 8, "blocks": [{"kind": "pre", "layers": ["lstm"]}]},
        "data": {"path": str(tmp_path / "d")}, "training": {"steps": 2, "batch_size": 2}}))
    told = weft("train", tmp_path / "run.yaml", "--out", tmp_path / "run", "--json").json()
    held = open_prepared(tmp_path / "d").part("validation")
    # All that is flagged but the row's first token, which nothing predicts.
    assert told["validation"]["tokens"] == (held.scored_tokens or 0) - 1
    assert told["validation"]["bytes"] < held.text_bytes / 3

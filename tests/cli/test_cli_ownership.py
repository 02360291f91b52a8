"""What was there before a command stays, whatever the command: a scratch folder full of somebody else's files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Refuse = Callable[..., str]


def everything(folder: Path) -> dict[str, bytes | str]:
    """What a folder holds: content by name, links by what they lead to, folders as such."""
    return {str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else
            path.read_bytes() if path.is_file() else "folder" for path in folder.rglob("*") if path.name != ".lock"}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of somebody's own files, some with names that Weft uses too."""
    folder = tmp_path / "mine"
    for name in ("config.json", "config.yaml", "study.yaml", "notes.txt", ".git/HEAD", ".x.draft", "runs/log.txt",
                 "checkpoints/000500/weights", "checkpoints/1000/weights", "data/raw.csv", "train-00000.tokens.bin",
                 ".config.json.previous/old"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"my {name}")
    return folder


@pytest.mark.parametrize("replace", [False, True])
def test_convert_replaces_no_foreign_folder(refused: Refuse, run: Path, mine: Path, replace: bool) -> None:
    before = everything(mine)
    for to in (("weft",), ("hf", "--with-code")):
        message = refused("convert", run, mine, "--to", *to, *(["--replace"] if replace else []))
        assert f"{mine}: this folder holds more than Weft wrote, so it is not replaced: no " in message
        assert "Choose another folder, or move your own files away and delete the rest." in message
    assert everything(mine) == before


def test_convert_replaces_neither_a_run_nor_its_checkpoint_nor_the_source(refused: Refuse, run: Path,
                                                                          tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    source = next((tmp_path / "run/checkpoints").iterdir())
    shutil.copytree(source, tmp_path / "other")
    before = everything(tmp_path)
    convert = ("convert", tmp_path / "run")
    for out, told in ((tmp_path / "run", "lists .lock, checkpoints, config.yaml, metrics.jsonl, run.json."),
                      (tmp_path / "run/checkpoints", f"no manifest of Weft's lists {source.name}"),
                      (tmp_path / "other", "training.safetensors is needed to resume a run"),
                      (source, "the folder is the source of the conversion"),
                      (source / "hf", "the folder lies in the source of the conversion")):
        assert told in refused(*convert, out, "--to", "weft", "--replace")
    (tmp_path / "link").symlink_to(source)
    before |= {"link": str(source)}
    assert "the folder is the source of the conversion" in refused(*convert, tmp_path / "link", "--to", "weft")
    assert everything(tmp_path) == before


def test_convert_replaces_what_it_wrote_when_it_is_asked_to(refused: Refuse, weft: Any, run: Path,
                                                            tmp_path: Path) -> None:
    """Also what an earlier version wrote: a checkpoint without the files that a run needs, and its manifest."""
    out = tmp_path / "out"
    for to in (("weft",), ("hf", "--with-code")):
        assert weft("convert", run, out, "--to", *to, "--json", "--replace").json()["target"] == to[0]
        assert f"{out}: this folder holds what Weft wrote before." in refused("convert", run, out, "--to", *to)
    (out / "README.md").write_text("my notes on this model")
    assert "no manifest of Weft's lists README.md" in refused("convert", run, out, "--to", "weft", "--replace")
    assert (out / "README.md").read_text() == "my notes on this model"


def test_train_takes_no_folder_that_holds_what_it_would_write(refused: Refuse, workplace: Path, mine: Path) -> None:
    before = everything(mine)
    message = refused("train", workplace / "tiny.yaml", "--out", mine)
    assert f"out: {mine} holds config.yaml, checkpoints, which a run would write, and no run.json beside" in message
    assert everything(mine) == before
    message = refused("train", workplace / "tiny.yaml", "--out", mine / "notes.txt")
    assert f"out: the folder {mine / 'notes.txt'} cannot be written to (File exists). Choose another" in message
    poetry = mine.parent / "poetry"
    poetry.mkdir()
    (poetry / ".lock").write_text("poetry's own")
    message = refused("train", workplace / "tiny.yaml", "--out", poetry)
    assert f"{poetry / '.lock'} is not a lock file of Weft's" in message
    assert (poetry / ".lock").read_text() == "poetry's own"


@pytest.mark.parametrize(("command", "what"), [(["train", "tiny.yaml"], "run"),
                                               (["compare", "tiny.yaml", "tiny.yaml", "--steps", "1"], "study")])
def test_no_work_begins_among_the_files_of_others(refused: Refuse, workplace: Path, mine: Path, command: list[str],
                                                  what: str) -> None:
    for name in ("config.yaml", "checkpoints", "study.yaml", "data", "runs"):
        (mine / name).rename(mine / f"my-{name}")
    before = everything(mine)
    message = refused(*(workplace / each if each.endswith(".yaml") else each for each in command), "--out", mine)
    assert f"out: {mine} holds .config.json.previous, .git, .x.draft, config.json, my-checkpoints and " in message
    assert f"and no {what}. Choose a new folder, such as {mine / what}, or an empty one." in message
    assert everything(mine) == before


def test_a_run_leaves_what_else_lies_in_its_folder(weft: Any, workplace: Path, mine: Path, tmp_path: Path) -> None:
    assert weft("train", workplace / "tiny.yaml", "--out", tmp_path / "run").code == 0
    for name in ("notes.txt", "data"):
        (mine / name).rename(tmp_path / "run" / name)
    before = everything(tmp_path / "run")
    assert weft("train", workplace / "tiny.yaml", "--out", tmp_path / "run", "--resume").code == 0
    assert everything(tmp_path / "run").items() >= {name: content for name, content in before.items()
                                                    if name.startswith(("notes", "data"))}.items()


def test_a_folder_whose_run_is_gone_is_not_begun_anew(refused: Refuse, workplace: Path, tmp_path: Path) -> None:
    shutil.copytree(workplace / "run", tmp_path / "run")
    (tmp_path / "run/run.json").unlink()
    before = everything(tmp_path)
    for more in ([], ["--resume"]):
        message = refused("train", workplace / "tiny.yaml", "training.steps=1", "--out", tmp_path / "run", *more)
        assert "holds config.yaml, metrics.jsonl, checkpoints, which a run would write, and no run.json" in message
    assert everything(tmp_path) == before


def test_compare_takes_no_folder_that_holds_what_it_would_write(refused: Refuse, workplace: Path, mine: Path) -> None:
    before = everything(mine)
    arguments = ("compare", workplace / "tiny.yaml", workplace / "tiny.yaml", "--steps", "1", "--out")
    message = refused(*arguments, mine)
    assert f"out: {mine} holds study.yaml, data, runs, which a study would write, and no study.json beside" in message
    assert everything(mine) == before and not (mine / ".lock").exists()
    assert "cannot be written to" in refused(*arguments, mine / "notes.txt")
    assert everything(mine) == before


def test_a_report_takes_no_other_files_place(refused: Refuse, weft: Any, tmp_path: Path) -> None:
    recorded = Path(__file__).parents[2] / "recipes/six_ages/result.json"
    shutil.copy(recorded, tmp_path)
    page = tmp_path / "report.html"
    for _ in range(2):  # the second replaces the first, which is as Weft wrote it
        assert weft("compare", "--report", tmp_path).code == 0
    page.write_text(page.read_text().replace("<title>", "<title>my own words: ", 1))
    edited = page.read_bytes()
    message = refused("compare", "--report", tmp_path)
    assert f"{page}: there is a file at this path" in message and "Choose another name, or delete it first." in message
    assert page.read_bytes() == edited


@pytest.mark.parametrize("replace", [False, True])
def test_prepare_replaces_no_foreign_folder(refused: Refuse, workplace: Path, mine: Path, replace: bool) -> None:
    before = everything(mine)
    message = refused("data", "prepare", workplace / "text.txt", "--out", mine, *(["--replace"] if replace else []))
    if replace:
        assert f"{mine}: this folder holds more than Weft wrote" in message
        assert "no manifest of Weft's lists .config.json.previous, .git, .x.draft, " in message
    else:
        assert "the manifest is damaged" in message and "--replace" not in message
    assert everything(mine) == before


def test_prepare_replaces_its_own_when_it_is_asked_to(refused: Refuse, weft: Any, workplace: Path,
                                                      tmp_path: Path) -> None:
    out, text = tmp_path / "tokens", tmp_path / "text.txt"
    shutil.copy(workplace / "text.txt", text)
    prepare = ("data", "prepare", text, "--out", out, "--tokenizer", "{kind: bpe, vocab_size: 270}")
    assert weft(*prepare).code == 0
    text.write_text(text.read_text() * 2)
    assert "has changed. Prepare again with --replace" in refused(*prepare)
    assert weft(*prepare, "--replace").code == 0
    shards = sorted(out.glob("*.bin"))
    for change, told in ((lambda: (out / "mine.txt").write_text("x"), "no manifest of Weft's lists mine.txt"),
                         (lambda: shards[0].write_bytes(b"0"), f"these have changed: {shards[0].name}")):
        change()
        before = everything(out)
        assert told in refused(*prepare, "--replace")
        assert everything(out) == before


def test_no_file_is_written_over(refused: Refuse, run: Path, workplace: Path, mine: Path) -> None:
    (mine / "link.safetensors").symlink_to(mine / "notes.txt")
    before = everything(mine)
    for name, told in (("notes.txt", "there is a file at this path already, and nothing proves that Weft wrote it"),
                       ("runs", "there is a folder at this path, and a file is to be written"),
                       ("link.safetensors", "this path is a symbolic link (to ")):
        for command in (("score", run, "--text", "a", "--logits"), ("config", "schema", "--out"),
                        ("config", "schema", workplace / "tiny.yaml", "--out")):
            message = refused(*command, mine / name)
            assert f"{mine / name}: {told}" in message and "Choose another name" in message
    message = refused("config", "schema", "--out", mine / "none/schema.json")
    assert "the file cannot be written (No such file or directory). Give a path in a folder that exists" in message
    assert everything(mine) == before


def test_an_ngram_goes_into_no_file_and_no_folder_of_others(refused: Refuse, weft: Any, workplace: Path, mine: Path,
                                                            tmp_path: Path) -> None:
    config = {"model": {"kind": "ngram", "order": 2, "context": 8, "end": 256},
              "data": {"path": str(workplace / "text.txt")}}
    (tmp_path / "ngram.yaml").write_text(yaml.safe_dump(config))
    assert weft("train", tmp_path / "ngram.yaml", "--out", tmp_path / "ngram").code == 0
    model = tmp_path / "model.arpa"
    assert weft("convert", tmp_path / "ngram", model).code == 0
    before = everything(mine), model.read_bytes()
    assert f"{model}: there is a file at this path" in refused("convert", tmp_path / "ngram", model, "--replace")
    assert "config.json and 6 more" in refused("convert", model, mine, "--tokenizer", "bytes", "--replace")
    assert (everything(mine), model.read_bytes()) == before
    for more in ([], ["--replace"]):
        assert weft("convert", model, tmp_path / "back", "--tokenizer", "bytes", *more).code == 0
    assert json.loads((tmp_path / "back/config.json").read_text())["weft_format"] == 1

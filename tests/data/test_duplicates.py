"""Documents that stand in the training text and in what is held out: counted, told, and kept on one side on request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weft.cli.main import app
from weft.core.errors import DataError
from weft.core.strict_json import digest
from weft.data import Corpus, Document, repeated
from weft.data.corpus import FEWEST_TO_SPLIT
from weft.data.manifest import read_prepared_manifest
from weft.data.settings import DataSettings
from weft.disk.manifest import MANIFEST_FILE
from weft.tasks.material import held_out_text, read_texts
from weft.tokenizers import ByteTokenizer
from weft.training.events import Event, Notice
from weft.training.files import parse_run
from weft.training.train import train

MODEL = {"kind": "decoder", "d_model": 8, "context": 8,
         "blocks": [{"kind": "pre", "layers": [{"kind": "mlp", "d_ff": 8}]}]}


def corpus(texts: list[str]) -> Corpus:
    return Corpus("drawn", tuple(Document(f"file{i}", text) for i, text in enumerate(texts)))


def folder_of(path: Path, *, copies: int, texts: int = 120) -> Path:
    """A folder of texts, each under so many names."""
    path.mkdir()
    for index in range(texts):
        for copy in range(copies):
            (path / f"{copy}-{index:03d}.txt").write_text(f"text number {index}, and what it says\n")
    return path


def test_repeated_documents_are_counted_by_their_text() -> None:
    train_text, held = corpus(["one", "two", "two", "three "]), corpus(["two", "three", "two", "four", "ONE"])
    assert repeated(held, train_text) == (2, 5)
    assert repeated(train_text, train_text) == (4, 4)
    assert repeated(held, corpus(["other"])).describe() == (
        "0 of 5 documents also stand, word for word, in the training text")


def test_blank_documents_are_no_copies_of_one_another() -> None:
    assert repeated(corpus([" \n", "held out"]), corpus([" \n", "trained on"])) == (0, 2)


def test_a_split_by_content_keeps_the_same_text_on_one_side() -> None:
    texts = corpus([f"text {i % 150}" for i in range(450)])
    by_name, by_content = texts.split(0.2), texts.split(0.2, by="content")
    assert repeated(by_name[1], by_name[0]).found > 0, "the copies of a text have names of their own"
    assert repeated(by_content[1], by_content[0]).found == 0
    assert sorted(d.name for side in by_content for d in side.documents) == sorted(d.name for d in texts.documents)
    held = {document.text for document in by_content[1].documents}
    assert 15 <= len(held) <= 50  # 30 of 150 expected, standard deviation 5
    renamed = Corpus("other", tuple(Document(f"new{i}", d.text) for i, d in enumerate(texts.documents)))
    assert {document.text for document in renamed.split(0.2, by="content")[1].documents} == held


def test_copies_of_one_text_cannot_be_split_by_content() -> None:
    with pytest.raises(DataError, match=r"drawn: all 120 documents have the same text, so none can be held out\. Give"):
        corpus(["same"] * 120).split(0.1, by="content")
    two = corpus(["rare"] + ["same"] * FEWEST_TO_SPLIT).split(0.0001, by="content")
    assert all(side.documents for side in two) and repeated(two[1], two[0]).found == 0


def test_what_is_read_follows_the_setting(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "texts", copies=3)
    for by, some in (("name", True), ("content", False)):
        settings = DataSettings.model_validate({"path": str(path), "split_by": by})
        parts = read_texts(settings).parts
        assert (repeated(parts["validation"], parts["train"]).found > 0) is some
        stream = held_out_text(settings, ByteTokenizer())
        assert stream.repeated == repeated(parts["validation"], parts["train"])


def test_preparing_and_inspecting_say_how_many(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "texts", copies=3)
    run = CliRunner()
    made = run.invoke(app, ["data", "prepare", str(path), "--out", str(tmp_path / "out")])
    part = read_prepared_manifest(tmp_path / "out").parts["validation"]
    assert part.in_training and part.in_training <= part.documents
    said = f"validation: {part.in_training} of {part.documents} documents also stand, word for word, in the training"
    assert said in made.output and "data.split_by=content" in made.output
    shown = run.invoke(app, ["data", "inspect", str(tmp_path / "out")])
    assert said in " ".join(shown.output.split())
    facts = {part["name"]: part for part in json.loads(run.invoke(
        app, ["data", "inspect", str(tmp_path / "out"), "--json"]).output)["parts"]}
    assert facts["validation"]["in_training"] == part.in_training and facts["train"]["in_training"] is None
    quiet = run.invoke(app, ["data", "prepare", str(path), "data.split_by=content", "--out", str(tmp_path / "by")])
    assert quiet.exit_code == 0 and "also stand" not in quiet.output
    assert read_prepared_manifest(tmp_path / "by").parts["validation"].in_training == 0


def test_training_and_evaluation_say_how_many(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "texts", copies=2)
    told: list[Event] = []
    config = parse_run({"model": MODEL, "data": {"path": str(path)}, "training": {"steps": 1, "batch_size": 1}})
    train(config, tmp_path / "run", on_event=told.append)
    notices = [event.line() for event in told if isinstance(event, Notice)]
    assert len(notices) == 1 and "documents also stand, word for word, in the training text" in notices[0]
    shown = CliRunner().invoke(app, ["eval", str(tmp_path / "run")])
    assert shown.exit_code == 0 and "documents also stand, word for word, in the training text" in shown.output


def test_a_folder_prepared_before_documents_were_counted_is_still_read(tmp_path: Path) -> None:
    """Format 1: without the count, and with a recipe that does not know ``split_by``."""
    path, out = folder_of(tmp_path / "texts", copies=1), tmp_path / "out"
    assert CliRunner().invoke(app, ["data", "prepare", str(path), "--out", str(out)]).exit_code == 0
    content = json.loads((out / MANIFEST_FILE).read_text())
    del content["digest"], content["recipe"]["data"]["split_by"]
    content["format"] = 1
    for part in content["parts"].values():
        del part["in_training"]
    (out / MANIFEST_FILE).write_text(json.dumps({**content, "digest": digest(content)}))
    assert read_prepared_manifest(out).parts["validation"].repeated is None
    again = CliRunner().invoke(app, ["data", "prepare", str(path), "--out", str(out)])
    assert again.exit_code == 0 and "kept" in again.output
    run = CliRunner().invoke(app, ["data", "inspect", str(out)])
    assert run.exit_code == 0 and "also stand" not in run.output

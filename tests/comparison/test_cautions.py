"""A study says how its models were trained, what they began with, and what of the test text was seen or lost."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from comparison.report.fixture import study as fixture_study
from comparison.report.reading import read, rows
from comparison.studies import ATTENTION, LSTM, NGRAM, run, study_of, write_text
from weft.api import config_path
from weft.cli.compare_table import print_study
from weft.comparison.cautions import beginnings, settings_of
from weft.comparison.contestants import Contestant, contestants
from weft.comparison.report import render
from weft.comparison.study_result import Setting, StudyResult
from weft.data import Corpus, Document
from weft.training.files import parse_run
from weft.training.run_training import train


def models_of(text: Path, **overrides: list[str]) -> list[Contestant]:
    """An attention and an LSTM model, with changes to either, and one that is counted."""
    found = {name: {"config": config, "overrides": overrides.get(name, [])}
             for name, config in (("a", ATTENTION), ("b", LSTM), ("n", NGRAM))}
    return contestants(study_of(text, found), config_path)[0]


def by_name(settings: tuple[Setting, ...]) -> dict[str, Setting]:
    return {each.name: each for each in settings}


def test_equal_settings_are_said_equal_and_counted_models_have_none(tmp_path: Path) -> None:
    found = by_name(settings_of(models_of(write_text(tmp_path)), "cpu"))
    assert all(each.equal for each in found.values())
    assert list(found) == ["optimizer", "schedule", "precision", "averaged weights", "largest norm of the gradients",
                           "dropout", "objective", "weight decay by kind of parameter"]
    assert all([name for name, _ in each.values] == ["a", "b"] for each in found.values())
    assert dict(found["optimizer"].values)["a"].startswith("adamw dynamics_lr 1, layer_decay 1, beta1 0.9")
    assert dict(found["weight decay by kind of parameter"].values)["a"] == (
        "embeddings 0.1, matrices 0.1, vectors 0")


@pytest.mark.parametrize(("override", "name", "value"), [
    ("training.optimizer.beta2=0.99", "optimizer", "beta2 0.99"),
    ("training.optimizer.kind=sgd", "optimizer", "sgd "),
    ("training.optimizer.weight_decay=0.2", "weight decay by kind of parameter", "matrices 0.2"),
    ("training.optimizer.groups=[{kinds: [embeddings], weight_decay: 0}]", "weight decay by kind of parameter",
     "embeddings 0, matrices 0.1"),
    ("training.schedule.warmup=0.2", "schedule", "warmup 0.2"),
    ("training.dtype=float64", "precision", "float64"),
    ("training.average={decay: 0.99}", "averaged weights", "decay 0.99"),
    ("training.clip_norm=null", "largest norm of the gradients", "not limited"),
    ("model.embedding.dropout=0.1", "dropout", "dropout 0.1"),
    ("training.objective.label_smoothing=0.1", "objective", "label_smoothing 0.1"),
])
def test_a_setting_of_one_model_alone_is_shown_for_each(tmp_path: Path, override: str, name: str, value: str) -> None:
    found = by_name(settings_of(models_of(write_text(tmp_path), b=[override]), "cpu"))
    assert not found[name].equal
    values = dict(found[name].values)
    assert value in values["b"] and value not in values["a"]
    others = {each.name for each in found.values() if not each.equal} - {name}
    assert others <= {"weight decay by kind of parameter"}  # which an optimizer of another kind brings along


def with_settings(result: StudyResult) -> StudyResult:
    settings = (Setting("schedule", True, (("transformer", "cosine"), ("lstm", "cosine"))),
                Setting("dropout", False, (("transformer", "none"), ("lstm", "dropout 0.1"))))
    return dataclasses.replace(result, budget=dataclasses.replace(result.budget, settings=settings))


def test_the_terminal_and_the_report_show_equal_settings_once_and_different_ones_by_model(
        capsys: pytest.CaptureFixture[str]) -> None:
    result = with_settings(fixture_study(2))
    print_study(result)
    text = capsys.readouterr().out
    assert re.search(r"schedule +yes +all +cosine", text)
    assert re.search(r"dropout +no +transformer +none *\n +lstm +dropout 0\.1", text)
    page = read(render(result))
    assert "Trained with different settings of dropout." in page.text()
    shown = next(rows(each) for each in page.all("table") if "were trained" in each.all("caption")[0].text())
    assert shown[-3:] == [["schedule", "equal", "all", "cosine"], ["dropout", "different", "transformer", "none"],
                          ["dropout", "different", "lstm", "dropout 0.1"]]
    assert StudyResult.from_json(result.to_json()).budget.settings == result.budget.settings


def test_a_study_that_begins_with_trained_weights_says_so_and_looks_for_the_test_text_behind_them(
        tmp_path: Path) -> None:
    text = write_text(tmp_path)
    config: dict[str, Any] = {"model": LSTM, "data": {"path": str(text)}, "training": {"steps": 1, "batch_size": 1}}
    train(parse_run(config), tmp_path / "before")
    models = [dataclasses.replace(each, run=each.run.model_copy(update={"start": str(tmp_path / "before")}))
              for each in models_of(text)]
    test = Corpus("test", (Document("copied", text.read_text()[300:900].upper()), Document("new", "other " * 40)))
    said, = beginnings(models, test)
    assert said.startswith("a, b: not trained from random weights, but from those of before, whose training stands in "
                           "no budget; of the test text, 1 of 2 documents also stand in the text behind them")
    text.unlink()
    assert beginnings(models, test)[0].endswith(
        "the text behind them is not recorded, or no longer lies where it was, so that it may hold the test text.")
    assert beginnings(models_of(write_text(tmp_path)), test) == ()


def test_a_study_says_what_was_seen_and_what_a_tokenizer_loses(tmp_path: Path) -> None:
    """The same model over bytes, over six words, and the test text in capitals in the training text."""
    text = write_text(tmp_path)
    test = tmp_path / "test"
    test.mkdir()
    (test / "0.txt").write_text(text.read_text()[:2000].upper())
    (test / "1.txt").write_text("".join(f"{index} lines of another kind\n" for index in range(70)))
    held = tmp_path / "held.txt"
    held.write_text("line 3: the sum of 2 and 2 is 4\n" * 40)
    few = copy.deepcopy(LSTM)
    models = {"bytes": {"config": {"model": LSTM, "tokenizer": "bytes"}},
              "words": {"config": {"model": few, "tokenizer": {"kind": "words", "vocab_size": 8}}}}
    result = run(study_of(text, models, tokenizer=None, differ=["tokenizer", "context", "batch_tokens"],
                          data={"path": str(text), "validation_path": str(held), "test_path": str(test)}),
                 tmp_path / "out")
    found = {entry.name: entry for entry in result.entries}
    assert found["bytes"].runs[0].lost_bits_per_byte == 0
    lost = found["words"].runs[0].lost_bits_per_byte
    assert lost > 1 and (found["words"].bits_per_byte or 0) > lost
    assert any(note.startswith(f"words: {lost:.4f} of its bits per byte are paid for text that its tokenizer loses")
               for note in result.notes)
    assert result.corpus.duplicated_documents == 1 and result.corpus.document_overlaps == (1.0, 0.0)
    assert any("1 of the 2 documents of the test text stand in the training text, too" in note for note in result.notes)
    assert [each.name for each in result.budget.settings if not each.equal] == []

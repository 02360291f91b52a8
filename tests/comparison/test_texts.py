"""Whose text a study's folder holds: kept while it is the same, refused when it changed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from comparison.studies import NGRAM, run, study_of, write_text
from weft.comparison.study import StudyConfig
from weft.core.errors import DataError, OccupiedError
from weft.data.settings import DataSettings
from weft.tokenizers.config import ByteTokenizerConfig
from weft.training.material import prepare_folder

MODELS: dict[str, Any] = {"a": {"config": NGRAM}, "b": {"config": NGRAM}}


def begun(study: StudyConfig, out: Path) -> list[str]:
    lines = []
    run(study, out, lambda progress: lines.append(progress) if progress.text == "begun" else None)
    return [each.what for each in lines]


def test_a_text_that_has_changed_is_refused_and_put_back_it_is_taken_again(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    study, out, whole = study_of(text, MODELS), tmp_path / "out", text.read_text()
    before = run(study, out)
    text.write_text(whole + "another line, which moves the border of what is held out\n" * 20)
    with pytest.raises(DataError, match=r"data: the text has changed since the study in .*out began: the corpus "
                                        r"\(SHA-256 \w{12}, now \w{12}\), .*Put the text back, or choose another "
                                        r"folder"):
        run(study, out)
    assert run(study, tmp_path / "other").corpus.sha256 != before.corpus.sha256
    text.write_text(whole)
    assert begun(study, out) == []


def test_a_test_text_of_its_own_that_has_changed_is_refused(tmp_path: Path) -> None:
    """It is no part of the corpus' hash, which is of what training reads."""
    text, test = write_text(tmp_path), tmp_path / "test.txt"
    test.write_text("a line of the test\n" * 50)
    study = study_of(text, MODELS, data={"path": str(text), "test_path": str(test)})
    run(study, tmp_path / "out")
    test.write_text("another line of the test\n" * 50)
    with pytest.raises(DataError, match=r"began: the test text \(SHA-256 "):
        run(study, tmp_path / "out")


@pytest.mark.parametrize("name", ["test", "tuning"])
def test_a_held_out_text_that_was_changed_is_refused_and_one_that_has_gone_is_made_again(
        tmp_path: Path, name: str) -> None:
    study, out = study_of(write_text(tmp_path), MODELS), tmp_path / "out"
    before = run(study, out)
    file, = (out / "data" / name).iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    (out / "data" / name / "more.txt").write_text("what nobody put there")
    with pytest.raises(OccupiedError, match=rf"data/{name}: this folder holds more than Weft wrote"):
        run(study, out)
    assert file.read_bytes() == whole[:100]
    shutil.rmtree(file.parent)
    for place in out.glob("runs/*/0/result.json"):
        place.unlink()
    assert [each.bits_per_byte for each in run(study, out).entries] == [each.bits_per_byte for each in before.entries]
    assert file.read_bytes() == whole and len(list((out / "data" / name).iterdir())) == 1


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    study, out = study_of(write_text(tmp_path), MODELS), tmp_path / "out"
    run(study, out)
    (out / "data" / "texts.json").write_text("{}")
    with pytest.raises(DataError, match=r"texts\.json: the file is damaged .* so the text of the study "
                                        r"is not known\. Choose another folder"):
        run(study, out)


def test_a_text_that_has_changed_since_it_was_prepared_is_refused(tmp_path: Path) -> None:
    text, folder = write_text(tmp_path), tmp_path / "prepared"
    prepare_folder(DataSettings(path=str(text)), ByteTokenizerConfig(), folder)
    study = study_of(text, MODELS, data={"path": str(folder)})
    run(study, tmp_path / "out")
    text.write_text(text.read_text() * 2)
    with pytest.raises(DataError, match=r"prepared: the text has changed since it was prepared \(train, validation\)\. "
                                        r"Prepare it again"):
        run(study, tmp_path / "fresh")


def test_documents_of_the_test_text_that_stand_in_the_training_text_are_counted(tmp_path: Path) -> None:
    test = tmp_path / "test"
    test.mkdir()
    text = write_text(tmp_path)
    (test / "0.txt").write_bytes(text.read_bytes())
    (test / "1.txt").write_text("a line of its own\n" * 30)
    result = run(study_of(text, MODELS, data={"path": str(text), "validation": 0.1, "test_path": str(test)}),
                 tmp_path / "out")
    assert result.corpus.document_overlaps == (pytest.approx(0.9, abs=0.02), 0.0), "a tenth of it is held out"
    held = tmp_path / "held.txt"
    held.write_text("a line that is held out\n" * 30)
    result = run(study_of(text, MODELS, data={"path": str(text), "validation_path": str(held), "test_path": str(test)}),
                 tmp_path / "again")
    assert result.corpus.duplicated_documents == 1
    assert any("1 of the 2 documents of the test text stand in the training text" in note for note in result.notes)

"""A kill at every moment of a replacement leaves the old or the new, whole, and the next writer clears up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from checkpoints.tiny_models import model_of
from training.test_kills import different, moments
from weft.checkpoints import load_checkpoint, save_checkpoint
from weft.disk.atomic import new_file, standing, tidy, write_file
from weft.disk.ownership import by_manifest
from weft.tokenizers import ByteTokenizer


def left(tmp_path: Path) -> list[Path]:
    """The folder as SIGKILL would have left it, at every moment that differs."""
    found = different(sorted((tmp_path / "moments").iterdir()))
    assert len(found) > 2
    return found


def test_a_folder_that_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, mine = tmp_path / "place", tmp_path / "place/notes.txt"
    save_checkpoint(place / "out", model_of(), None, facts={"step": 1})
    mine.write_text("mine")
    with monkeypatch.context() as patch:
        moments(place, tmp_path / "moments", patch)
        save_checkpoint(place / "out", model_of(), ByteTokenizer(), facts={"step": 2}, replace=True)
    steps = set()
    for moment in left(tmp_path):
        steps.add(load_checkpoint(moment / "out").facts["step"])
        assert by_manifest(standing(moment / "out")) == []
        again = Path(shutil.copytree(moment, tmp_path / f"{moment.name}-tidied"))
        tidy(again)
        assert load_checkpoint(again / "out").facts["step"] in (1, 2)
        for folder in (moment, again):
            save_checkpoint(folder / "out", model_of(), None, facts={"step": 3}, replace=True)
            assert load_checkpoint(folder / "out").facts["step"] == 3
            assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "out"]
            assert (folder / "notes.txt").read_text() == "mine"
    assert steps == {1, 2}


def test_a_file_that_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with monkeypatch.context() as patch:
        moments(place, tmp_path / "moments", patch)
        with new_file(place / "logits") as draft:
            draft.write_bytes(torch.arange(100.0).numpy().tobytes())
    for moment in left(tmp_path):
        file = moment / "logits"
        assert not file.exists() or file.stat().st_size == 400
        file.unlink(missing_ok=True)
        with new_file(file) as draft:
            draft.write_text("again")
        assert [path.name for path in moment.iterdir()] == ["logits"]


def test_a_file_of_wefts_own_that_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    place.mkdir()
    write_file(place / "run.json", json.dumps({"old": list(range(1000))}))
    with monkeypatch.context() as patch:
        moments(place, tmp_path / "moments", patch)
        write_file(place / "run.json", json.dumps({"new": list(range(2000))}))
    assert {next(iter(json.loads((moment / "run.json").read_text()))) for moment in left(tmp_path)} <= {"old", "new"}
    for moment in left(tmp_path):
        tidy(moment)
        assert [path.name for path in moment.iterdir()] == ["run.json"]

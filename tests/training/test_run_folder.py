"""A run's folder: what in it is the run's, and what is somebody else's."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from training.test_resume import run_killed_at
from training.tiny_runs import LSTM, same_weights, tiny_run
from weft.checkpoints import load_checkpoint
from weft.core.errors import ConfigError, TrainingError
from weft.training import Event, parse_run, train
from weft.training.folder import RunFolder


def test_only_checkpoints_of_this_run_are_taken_and_only_those_are_deleted(tmp_path: Path) -> None:
    """Foreign names beside them are neither the last nor the best, and stay."""
    run = tiny_run(tmp_path, LSTM, steps=40)
    whole, out = train(run, tmp_path / "whole"), tmp_path / "run"
    run_killed_at(run, out, 15)
    other = train(tiny_run(tmp_path, LSTM, steps=1, optimizer={"lr": 1e-9}), tmp_path / "other")
    places = [out / "checkpoints" / name for name in ("1000", "000500", "damaged-00000007", "00009999x")]
    for place in places:
        shutil.copytree(other.checkpoint, place)
    (out / "checkpoints/00000030").mkdir()  # empty: nothing is in the way
    (out / "checkpoints/00000077").mkdir()
    (out / "checkpoints/00000077/thesis.tex").write_text("mine")
    resumed = train(run, out, resume=True)
    assert same_weights(resumed.model, whole.model) and resumed.checkpoint.name == "00000040"
    assert resumed.best.name == whole.best.name and load_checkpoint(out).facts["step"] == 40
    assert all((place / "MANIFEST.json").exists() for place in places)
    assert (out / "checkpoints/00000077/thesis.tex").read_text() == "mine"


def test_a_checkpoint_of_another_run_is_refused_by_name(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM)
    train(run, tmp_path / "run")
    other = train(tiny_run(tmp_path, LSTM, steps=1), tmp_path / "other")
    place = tmp_path / "run/checkpoints/00001000"
    shutil.copytree(other.checkpoint, place)
    assert load_checkpoint(tmp_path / "run").facts["step"] == 20
    with pytest.raises(ConfigError, match=r"checkpoints holds 00001000 of another run than the one in run\.json\."):
        train(run, tmp_path / "run", resume=True)
    assert place.exists()


def test_what_stands_where_a_checkpoint_is_to_be_saved_stops_the_run_and_stays(tmp_path: Path) -> None:
    run, out = tiny_run(tmp_path, LSTM), tmp_path / "run"
    place = out / "checkpoints/00000020"

    def put(event: Event) -> None:
        if event.step == 15 and not place.exists():
            place.mkdir(parents=True)
            (place / "thesis.tex").write_text("mine")

    with pytest.raises(TrainingError, match=r"00000020: this folder holds more than Weft wrote.* no manifest of "
                                            r"Weft's lists thesis\.tex.*The last good checkpoint is .*00000010"):
        train(run, out, on_event=put)
    assert [path.name for path in place.iterdir()] == ["thesis.tex"]
    shutil.move(place, tmp_path / "mine")
    train(run, out, resume=True)
    assert load_checkpoint(out).facts["step"] == 20


def test_a_checkpoint_to_which_something_was_added_is_not_deleted(tmp_path: Path) -> None:
    run, out = tiny_run(tmp_path, LSTM, steps=60), tmp_path / "run"

    def annotate(event: Event) -> None:
        if event.name == "saved" and event.step == 10:
            (out / "checkpoints/00000010/notes.md").write_text("this one is interesting")

    assert train(run, out, on_event=annotate).best.name != "00000010", "which alone would keep it"
    names = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert names[0] == "00000010" and names[-1] == "00000060" and len(names) <= 3
    assert (out / "checkpoints/00000010/notes.md").read_text() == "this one is interesting"


def test_the_readable_configuration_is_completed_and_left_when_it_was_changed(tmp_path: Path) -> None:
    """The run stands with run.json, so a kill may come before the copy to read."""
    run, out = tiny_run(tmp_path, LSTM), tmp_path / "run"
    train(run, out)
    text = (out / "config.yaml").read_text()
    (out / "config.yaml").unlink()
    train(run, out, resume=True)
    assert (out / "config.yaml").read_text() == text
    (out / "config.yaml").write_text(f"# mine\n{text}")
    record = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**record, "software": {"weft": "0.0"}}))
    train(run, out, resume=True, allow_inexact=True)
    assert (out / "config.yaml").read_text() == f"# mine\n{text}"
    assert json.loads((out / "run.json").read_text())["software"] == record["software"]


def test_event_files_of_others_stay(tmp_path: Path) -> None:
    run, out = parse_run(tiny_run(tmp_path, LSTM).dump(), ["report.tensorboard=true"]), tmp_path / "run"
    train(run, out)
    mine = [out / "tensorboard" / name for name in ("notes.md", "events.out.tfevents.1.host.2.0")]
    for path in mine:
        path.write_text("mine")
    train(run, out, resume=True)
    assert [path.read_text() for path in mine] == ["mine", "mine"]
    assert len(list((out / "tensorboard").iterdir())) == 3


@pytest.mark.parametrize("name", ["link", "text", "folder"])
def test_a_lock_that_is_not_wefts_is_refused(tmp_path: Path, name: str) -> None:
    other, lock = tmp_path / "other", tmp_path / "run/.lock"
    other.write_text("lock: of another program\n")
    lock.parent.mkdir()
    {"link": lambda: lock.symlink_to(other), "text": lambda: shutil.copy(other, lock), "folder": lock.mkdir}[name]()
    message = r"\.lock is not a lock file of Weft's, and would be overwritten\. Choose another"
    with pytest.raises(ConfigError, match=message), RunFolder(tmp_path / "run", resume=False):
        pytest.fail("it is not entered")
    assert other.read_text() == "lock: of another program\n" and os.path.lexists(lock)

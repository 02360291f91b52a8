"""A study that is killed goes on; what its processes do when they or it are ended from outside."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from comparison.studies import ATTENTION, LSTM, compare, run, study_of, write_text
from fresh import Fresh
from weft.comparison.jobs import Job, Outcome
from weft.comparison.launch import OwnProcesses, done
from weft.comparison.study import StudyConfig
from weft.comparison.study_settings import MeasureSettings
from weft.core.errors import ConfigError
from weft.disk.lock import held
from weft.training import parse_run


@pytest.fixture(scope="module")
def shared() -> Iterator[OwnProcesses]:
    """Processes forked by one that serves several tests, since its start takes seconds."""
    with OwnProcesses() as launch:
        yield launch


@pytest.fixture
def study(tmp_path: Path) -> StudyConfig:
    return study_of(write_text(tmp_path), {"a": {"config": ATTENTION}, "b": {"config": LSTM}}, length={"steps": 6})


def _free(out: Path) -> None:
    """Wait until the run's process, which ends with its parent, has let go of its folder."""
    for _ in range(200):
        try:
            with held(out / "runs" / "b" / "0" / "run", "looking on"):
                return
        except ConfigError:
            time.sleep(0.05)
    raise AssertionError("the process of the run outlives the study")


def test_a_study_that_is_killed_goes_on_to_the_same_figures(study: StudyConfig, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study.model_dump(mode="json", exclude_none=True)))
    process = Fresh(compare, str(tmp_path / "study.yaml"), str(tmp_path / "killed"), folder=tmp_path)
    process.wait_for("b, run 1 of 1: step 3/6")
    process.send(signal.SIGKILL)
    assert process.end().returncode == -signal.SIGKILL
    _free(tmp_path / "killed")
    told: list[str] = []
    resumed = run(study, tmp_path / "killed", lambda progress: told.append(progress.line()))
    whole = run(study, tmp_path / "whole")
    assert not any("a, run 1 of 1: step" in line for line in told)
    for mine, other in zip(resumed.entries, whole.entries, strict=True):
        assert mine.runs[0].bits_per_byte == other.runs[0].bits_per_byte


def _job(tmp_path: Path, *, steps: int = 500, plugins: tuple[str, ...] = (), device: str = "cpu",
         d_model: int = 8) -> Job:
    text = write_text(tmp_path)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "0.txt").write_text("a line of text\n" * 20)
    model = {**LSTM, "d_model": d_model}
    run = parse_run({"model": model, "data": {"path": str(text)}, "training": {"steps": steps, "batch_size": 2}})
    job = Job("run", "lstm", run, tmp_path / "job", None, tmp_path / "test", (), None, True, 1.0, MeasureSettings(),
              plugins=plugins, device=device)
    job.folder.mkdir()
    return job


def _write(job: Job) -> None:
    import json

    (job.folder / "job.json").write_text(json.dumps({"key": job.key(), **job.to_json()}))


def test_a_process_that_is_killed_is_no_verdict_and_is_tried_again(tmp_path: Path,
                                                                   shared: OwnProcesses) -> None:
    job = _job(tmp_path)
    _write(job)
    outcome = shared(job, lambda line, step, steps: _kill(*_children(*_servers())))
    assert outcome == Outcome("interrupted", "its process was ended by SIGKILL, perhaps for want of memory")
    assert not (job.folder / "result.json").exists()
    assert done(job, shared, lambda line, step, steps: None).status == "finished"


def test_a_process_that_cannot_begin_says_why(tmp_path: Path, shared: OwnProcesses) -> None:
    job = _job(tmp_path, plugins=(str(tmp_path / "missing.py"),))
    _write(job)
    outcome = shared(job, lambda line, step, steps: None)
    assert outcome.status == "interrupted"
    assert "its process ended with code 1" in outcome.note and "missing.py" in outcome.note


def test_a_full_disk_is_told_and_is_no_verdict(tmp_path: Path, shared: OwnProcesses) -> None:
    """The limit lies above everything but the weights of a checkpoint, as with a quota."""
    job = _job(tmp_path, steps=3, d_model=64)
    _write(job)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with OwnProcesses() as launch:
            outcome = launch(job, lambda line, step, steps: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outcome.status == "interrupted"
    assert "there is no space for the checkpoint, which takes" in outcome.note and "Free space" in outcome.note
    assert not (job.folder / "result.json").exists()
    assert done(job, shared, lambda line, step, steps: None).status == "finished"


def test_work_outlives_the_process_that_forked_it_and_another_takes_its_place(tmp_path: Path) -> None:
    job = _job(tmp_path, steps=3)
    _write(job)
    before = _servers()

    def servers() -> list[int]:
        return sorted(_servers() - before)

    with OwnProcesses() as launch:
        assert launch(job, lambda line, step, steps: _kill(*servers())).status == "finished"
        assert not servers()
        (job.folder / "result.json").unlink()
        assert launch(job, lambda line, step, steps: None).status == "finished"
        server, = servers()
        (job.folder / "result.json").unlink()
        assert launch(job, lambda line, step, steps: None).status == "finished"
        assert servers() == [server], "one interpreter serves them all"
    assert not servers()


def test_where_a_fork_is_not_safe_each_process_does_one_job_and_ends(tmp_path: Path) -> None:
    job = _job(tmp_path, steps=3, device="cpu:0")  # a device by number, as GPUs have them
    _write(job)
    before, seen = _servers(), set[int]()
    with OwnProcesses() as launch:
        for _ in range(2):
            assert launch(job, lambda line, step, steps: seen.update(_servers())).status == "finished"
            assert _servers() <= before
            (job.folder / "result.json").unlink()
    assert len(seen - before) == 1, "the second time all was done, and nothing to tell"


def _children(*parents: int) -> list[int]:
    """The processes that these have started."""
    wanted = {f"PPid:\t{parent}\n" for parent in parents}
    return [int(entry.name) for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and any(line in _status(entry) for line in wanted)]


def _servers() -> set[int]:
    """The processes of this one that fork those which do the work."""
    return {child for child in _children(os.getpid())
            if b"weft.comparison.launch" in Path(f"/proc/{child}/cmdline").read_bytes()}


def _kill(*processes: int) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)


def _status(entry: Path) -> str:
    try:
        return (entry / "status").read_text()
    except OSError:
        return ""

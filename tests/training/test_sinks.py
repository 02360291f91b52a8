"""Figures in TensorBoard and W&B: each point once, whatever happens to the run."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from training.test_resume import run_killed_at
from training.tiny_runs import LSTM, tiny_run
from weft.core.errors import ConfigError, MissingExtra, TrainingError, UnsupportedError
from weft.training import RunConfig, parse_run, train
from weft.training.sinks import TensorBoardSink

POINTS = {("train/loss", 5), ("train/loss", 10), ("train/loss", 15), ("train/loss", 20), ("validation/loss", 10),
          ("validation/loss", 20)}


def reporting(folder: Path, *overrides: str) -> RunConfig:
    return parse_run(tiny_run(folder, LSTM).dump(), overrides)


def points(folder: Path) -> list[tuple[str, int, float]]:
    """Name, step and value of all points in the event files of a folder, by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), purge_orphaned_data=False)
    reader.Reload()
    return [(tag, event.step, event.value) for tag in reader.Tags()["scalars"] for event in reader.Scalars(tag)]


def test_tensorboard_shows_every_point_once_also_after_a_resume(tmp_path: Path) -> None:
    run = reporting(tmp_path, "report.tensorboard=true")
    run_killed_at(run, tmp_path / "run", 15)
    train(run, tmp_path / "run", resume=True)
    found = points(tmp_path / "run/tensorboard")
    losses = sorted((tag, step) for tag, step, _ in found if tag.endswith("/loss"))
    assert losses == sorted(POINTS)
    told = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    wanted = {record["step"]: record["loss"] for record in told if record["event"] == "progress"}
    shown = {step: value for tag, step, value in found if tag == "train/loss"}
    assert shown == pytest.approx(wanted, rel=1e-6)  # TensorBoard keeps float32
    assert {"train/bits_per_byte", "train/lr", "train/grad_norm", "speed/tokens_per_second", "memory/resident_bytes",
            "validation/bits_per_byte"} <= {tag for tag, _, _ in found}
    assert not {tag for tag, _, _ in found} & {"speed/mfu", "memory/allocated_bytes"}, "not measured here"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device that is always full is one of Linux")
def test_a_disk_that_fills_up_ends_the_run_with_one_error_and_the_next_goes_on(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """The event file alone is on the full disk, so that the run gets as far as writing to it."""
    run, add = reporting(tmp_path, "report.tensorboard=true"), TensorBoardSink.add

    def onto_a_full_disk(sink: TensorBoardSink, record: Mapping[str, Any]) -> None:
        if record["step"] == 15:
            sink._file.close()
            sink._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
        add(sink, record)

    with monkeypatch.context() as patch:
        patch.setattr(TensorBoardSink, "add", onto_a_full_disk)
        with pytest.raises(TrainingError, match=r"tfevents.*: the file cannot be written \(No space left on device\); "
                                                r".* The last good checkpoint is .*/00000010\. Free space"):
            train(run, tmp_path / "run")
    assert "Traceback" not in capfd.readouterr().err, "as of a thread that has ended"
    assert {path.name for path in (tmp_path / "run/checkpoints").iterdir()}, "those saved before stay"
    train(run, tmp_path / "run", resume=True)
    losses = sorted((tag, step) for tag, step, _ in points(tmp_path / "run/tensorboard") if tag.endswith("/loss"))
    assert losses == sorted(POINTS)


class FakeRun:
    """A run of the stand-in for W&B, which like the real one refuses steps that go back."""

    def __init__(self, told: list[tuple[str, int]]) -> None:
        self.told, self.ended = told, list[int]()

    def log(self, scalars: dict[str, float], *, step: int) -> None:
        assert not self.told or step >= self.told[-1][1]
        self.told += [(name, step) for name in scalars]

    def finish(self, *, exit_code: int) -> None:
        self.ended.append(exit_code)


class FakeWandb(ModuleType):
    """Remembers what it is told, over several starts of one run."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.starts: list[dict[str, Any]] = []
        self.told: list[tuple[str, int]] = []
        self.runs: list[FakeRun] = []

    def init(self, **options: Any) -> FakeRun:
        self.starts.append(options)
        self.runs.append(FakeRun(self.told))
        return self.runs[-1]


def test_wandb_goes_on_under_one_id_and_is_told_every_point_once(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    run = reporting(tmp_path, "report.wandb={project: tests, mode: offline}")
    run_killed_at(run, tmp_path / "run", 15)
    train(run, tmp_path / "run", resume=True)
    losses = [point for point in fake.told if point[0].endswith("/loss")]
    assert sorted(losses) == sorted(POINTS), "none twice, none missing"
    first, second = fake.starts
    assert first == second and first["resume"] == "allow" and first["mode"] == "offline"
    assert first["id"] == json.loads((tmp_path / "run/run.json").read_text())["id"]
    assert (first["project"], first["name"], first["dir"]) == ("tests", "run", str(tmp_path / "run"))
    assert first["config"]["training"]["steps"] == 20
    assert [each.ended for each in fake.runs] == [[1], [0]], "the first was killed, the second ended"


def test_wandb_that_does_not_start_is_an_error_before_the_first_step(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()

    def refuse(**_: Any) -> FakeRun:
        raise RuntimeError("no API key")

    monkeypatch.setattr(fake, "init", refuse)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(UnsupportedError, match=r"report\.wandb: W&B did not start the run \(no API key\)\. Log in with "
                                               r"`wandb login`, or set report\.wandb\.mode=offline"):
        train(reporting(tmp_path, "report.wandb={project: tests}"), tmp_path / "run")
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.parametrize(("override", "module", "extra"), [
    ("report.tensorboard=true", "tensorboard.compat.proto.event_pb2", "tensorboard"),
    ("report.wandb={project: tests}", "wandb", "wandb")])
def test_an_extra_that_is_missing_is_named_before_anything_is_written(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, module: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"report\.{extra} needs the package '{extra}', which is not installed\. "
                                           rf"Install it with: pip install 'weft\[{extra}\]'"):
        train(reporting(tmp_path, override), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_wandb_run_needs_a_project(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"report\.wandb\.project"):
        reporting(tmp_path, "report.wandb={mode: offline}")

"""TensorBoard and Weights & Biases, to which a run can also log its metrics. Both are optional dependencies."""

from __future__ import annotations

import glob
import importlib
import io
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from weft.core.errors import MissingExtra, UnsupportedError
from weft.training.config import ReportSettings, RunConfig, WandbSettings
from weft.training.events import Event
from weft.training.folder import writing
from weft.training.records import scalars_of

TENSORBOARD_FOLDER = "tensorboard"
EVENTS = "tensorboard.compat.proto.event_pb2"
"""The module of the records in TensorBoard's event files."""


class Sink(ABC):
    """Logs the metrics of a run, each point once, even when the run is resumed."""

    @abstractmethod
    def add(self, record: Mapping[str, Any]) -> None:
        """Log the metrics of an event."""

    @abstractmethod
    def close(self, *, failed: bool) -> None:
        """Flush and close."""


class Sinks:
    """The sinks of a run's configuration, open from `start` to the end of ``with``.

    Args:
        logged: for each event's name, the last step that was logged before an interruption.
    """

    def __init__(self, config: RunConfig, folder: Path, logged: Mapping[str, int]) -> None:
        self._config, self._folder, self._logged = config, folder, logged
        self._sinks: list[Sink] = []

    def __enter__(self) -> Sinks:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        for sink in self._sinks:
            sink.close(failed=kind is not None)

    def start(self, run_id: str, records: list[dict[str, Any]]) -> None:
        """Open the sinks.

        Args:
            run_id: W&B's id of the run, and the suffix of its TensorBoard files.
            records: of the events so far, from which TensorBoard's file is rewritten.

        Raises:
            UnsupportedError: W&B does not start the run.
        """
        report = self._config.report
        if report.tensorboard:
            self._sinks.append(TensorBoardSink(self._folder / TENSORBOARD_FOLDER, run_id, records))
        if report.wandb is not None:
            self._sinks.append(WandbSink(report.wandb, self._folder, self._config.dump(), run_id, self._logged))

    def emit(self, event: Event) -> None:
        """Pass an event with metrics to all sinks."""
        record = event.to_json()
        if scalars_of(record):
            for sink in self._sinks:
                sink.add(record)


def require_sinks(settings: ReportSettings) -> None:
    """Check that the packages of the sinks are installed. Raises `MissingExtra`: naming the extra."""
    if settings.tensorboard:
        _imported(EVENTS, "tensorboard", "report.tensorboard")
    if settings.wandb is not None:
        _imported("wandb", "wandb", "report.wandb")


class TensorBoardSink(Sink):
    """An event file in the run folder. A resumed run rewrites its file from its metrics, so that no point is there
    twice. Points are written at once and by the thread that trains: TensorBoard's own writer has a thread, in which a
    full disk ends with a traceback.

    Args:
        run_id: suffix of their names, so that the run deletes no others.
        records: of the events so far.

    Raises:
        TrainingError: the file cannot be written.
    """

    def __init__(self, folder: Path, run_id: str, records: list[dict[str, Any]]) -> None:
        for path in folder.glob(f"events.out.tfevents.*.{glob.escape(run_id)}"):
            path.unlink()
        self._events = _imported(EVENTS, "tensorboard", "report.tensorboard")
        self._framed = _imported("tensorboard.summary.writer.record_writer", "tensorboard", "report.tensorboard")
        own = f"{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / f"events.out.tfevents.{own}.{run_id}"
        with writing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115
        self._write([{"file_version": "brain.Event:2"}])
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        self._write([{"step": int(record["step"]), "summary": {"value": [{"tag": name, "simple_value": value}]}}
                     for name, value in scalars_of(record).items()])

    def _write(self, events: list[dict[str, Any]]) -> None:
        """Append events, given by the fields of `tensorboard.compat.proto.event_pb2.Event`."""
        framed = io.BytesIO()
        for event in events:
            made = self._events.Event(wall_time=time.time(), **event)
            self._framed.RecordWriter(framed).write(made.SerializeToString())
        left = framed.getbuffer()
        with writing(self._path):
            while left:
                left = left[self._file.write(left):]

    def close(self, *, failed: bool) -> None:
        self._file.close()


class WandbSink(Sink):
    """A run of Weights & Biases, which is continued under its id when the run is resumed.

    W&B refuses points of earlier steps than it has. A resumed run repeats some steps with the same results, so their
    points are not logged again.

    Args:
        config: of the run, as plain data.
        logged: for each event's name, the last step that was logged before.

    Raises:
        UnsupportedError: W&B does not start the run.
    """

    def __init__(self, settings: WandbSettings, folder: Path, config: dict[str, Any], run_id: str,
                 logged: Mapping[str, int]) -> None:
        wandb = _imported("wandb", "wandb", "report.wandb")
        self._logged = logged
        try:
            self._run = wandb.init(project=settings.project, name=settings.name or folder.name, id=run_id,
                                   resume="allow", mode=settings.mode, dir=str(folder), config=config)
        except Exception as error:  # any of W&B, the network or the operating system
            raise UnsupportedError(f"W&B did not start the run ({error}).", where="report.wandb",
                                   remedy="Log in with `wandb login`, or set report.wandb.mode=offline.") from error

    def add(self, record: Mapping[str, Any]) -> None:
        if int(record["step"]) > self._logged.get(record["event"], -1):
            self._run.log(scalars_of(record), step=int(record["step"]))

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def _imported(module: str, extra: str, purpose: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(extra, extra, purpose) from None

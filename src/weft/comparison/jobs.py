"""The jobs of a study: trials of learning rates, runs, and measurements of pace. Each is a plain record that a process
of its own can read, made by code that is recorded with it, and ends in a file that says how it went."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from weft.comparison.results import CurvePoint, DecodePoint, LengthPoint, PositionPoint, Sample, Status
from weft.comparison.study_settings import MeasureSettings
from weft.core.config import parse
from weft.core.errors import CheckpointError, OccupiedError
from weft.core.strict_json import Record, digest, dumps
from weft.disk.atomic import tidy, write_file
from weft.disk.documents import read_json
from weft.disk.ownership import enumerated
from weft.training.code import changes, code_of
from weft.training.config import RunConfig
from weft.training.files import parse_run

JOB_FILE, RESULT_FILE, LOG_FILE = "job.json", "result.json", "output.txt"
DATA = "data"
"""Where in a study's folder its texts are."""

MEASURING = tuple(f"comparison/{name}.py" for name in ("measures", "texts", "work"))
"""Code of studies that decides what a piece of work finds, besides that of training."""

PIECES = frozenset({JOB_FILE, RESULT_FILE, LOG_FILE, "run", "curve.jsonl", "memory.txt"})
"""What a piece of work leaves in its folder."""

JobKind: TypeAlias = Literal["pace", "trial", "run"]
OnProgress: TypeAlias = Callable[[str, int, int], None]
"""A line for people, updates done, and updates of the whole run."""


@dataclass(frozen=True)
class Options:
    """How a study runs, which decides nothing but its seconds and its bytes.

    Attributes:
        device: where to compute.
        threads: of the CPU; None: as many as torch takes.
        plugins: files that add parts, loaded in every process.
        own_processes: every piece of work has a process of its own, so that its peak memory is its own and the study
            survives its end.
        command: that repeats the study, for the report.
    """

    device: str = "cpu"
    threads: int | None = None
    plugins: tuple[str, ...] = ()
    own_processes: bool = True
    command: str = ""


@dataclass(frozen=True)
class Job(Record):
    """A piece of work.

    Attributes:
        kind: ``pace`` turns a budget in seconds into steps; ``trial`` is judged on the tuning text alone; ``run`` is
            measured on the test text.
        tuning: folder of the documents that learning rates are chosen on; None for a run that is no trial.
        test: folder of the documents that every figure is measured on.
        texts: hashes of the whole text and of these two parts of it.
        tokens: that a counted model may read; None: all.
        device: where to compute.
        plugins: files that add parts.
    """

    kind: JobKind
    name: str
    run: RunConfig
    folder: Path
    tuning: Path | None
    test: Path
    texts: tuple[str, ...]
    tokens: int | None
    trained: bool
    flops_per_token: float | None
    measure: MeasureSettings
    device: str = "cpu"
    threads: int = 1
    plugins: tuple[str, ...] = ()

    def key(self) -> str:
        """A hash of everything that decides the result, the code included; where it lies and how many threads compute
        is not among it."""
        whole = {"settings": self.key_without_code(), "code": self.code()}
        return digest(whole)

    def key_without_code(self) -> str:
        """The same of all but the code."""
        left_out = ("folder", "test", "threads", "plugins")
        kept = {key: value for key, value in self.to_json().items() if key not in left_out}
        kept["tuning"] = self.tuning is not None
        kept["run"] = placed(kept["run"], self.folder)
        return digest(kept)

    def code(self) -> dict[str, str]:
        """Hashes of the files that do the work, see `weft.training.code.code_of`."""
        return code_of(self.run, plugins=self.plugins, also=MEASURING)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**super().to_json(), "run": self.run.dump(), "measure": self.measure.model_dump(mode="json")}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """A job from the output of `to_json`, beside which its file may hold other entries."""
        own = {field.name: data[field.name] for field in fields(cls)}
        return super().from_json({**own, "run": parse_run(own["run"]),
                                  "measure": parse(MeasureSettings, own["measure"])})


@dataclass(frozen=True)
class Outcome(Record):
    """How a piece of work went.

    Attributes:
        note: why it did not finish.
        bits_per_byte: and ``loss``: on the test text; None for a trial that is no run.
        tuning_bits_per_byte: on the tuning text; None for what is no trial.
        peak_memory_bytes: of the process during training.
        numbers: that the model learned or counted.
        lost_bits_per_byte: the part of ``bits_per_byte`` that is for text which the tokenizer loses.
        cluster_nats: and ``cluster_bytes``: for each document, or block, of the test text.
    """

    status: Status
    note: str = ""
    bits_per_byte: float | None = None
    tuning_bits_per_byte: float | None = None
    loss: float | None = None
    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    numbers: int = 0
    curve: tuple[CurvePoint, ...] = ()
    by_position: tuple[PositionPoint, ...] = ()
    by_length: tuple[LengthPoint, ...] = ()
    decode: tuple[DecodePoint, ...] = ()
    sample: Sample | None = None
    cluster_nats: tuple[float, ...] = field(default=(), repr=False)
    cluster_bytes: tuple[int, ...] = field(default=(), repr=False)
    lost_bits_per_byte: float = 0.0


def write_outcome(job: Job, outcome: Outcome) -> None:
    """Keep how a piece of work went."""
    write_file(job.folder / RESULT_FILE, dumps({"key": job.key(), **outcome.to_json()}) + "\n")


def read_outcome(job: Job) -> Outcome | None:
    """How a piece of work went; None when it has not been done, or not just so. Raises `CheckpointError`: the file is
    damaged."""
    path = job.folder / RESULT_FILE
    if not path.exists():
        return None
    try:
        content = read_json(path)
        if content.pop("key") != job.key():
            return None
        return Outcome.from_json(content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the file is damaged ({error}).", where=str(path),
                              remedy="Delete its folder, and the study does this part again.") from None


def placed(run: Mapping[str, Any], inside: Path) -> dict[str, Any]:
    """A run's configuration as plain data, in which a text of the study's own is named from the study's folder on, so
    that nothing depends on where that lies.

    Args:
        inside: the study's folder, or any in it.
    """
    data = dict(run["data"])
    path = None if data.get("path") is None else Path(data["path"]).absolute()
    for study in (inside.absolute(), *inside.absolute().parents):
        if path is not None and path.is_relative_to(study / DATA):
            data["path"] = path.relative_to(study).as_posix()
            break
    return {**run, "data": data}


def made_by_other_code(job: Job) -> str:
    """Why what stands in the folder of a piece of work is not taken, where code alone is the reason; else nothing."""
    try:
        before = dict(read_json(job.folder / JOB_FILE))
    except (OSError, ValueError, TypeError):
        return ""
    same = before.get("key_without_code") == job.key_without_code()
    found = changes(before.get("code", {}), job.code()) if same else []
    return f"was made by other code ({'; '.join(found)}), so it is done again" if found else ""


def empty(folder: Path) -> None:
    """Delete what a piece of work has left under a name that other work now has. Raises `OccupiedError`: the folder
    holds something else."""
    if not os.path.lexists(folder):
        return
    if folder.is_dir() and not folder.is_symlink():
        tidy(folder)
        found = sorted(path.name for path in folder.iterdir())
        own = PIECES if JOB_FILE in found else frozenset[str]()
        foreign = [name for name in found if name not in own]
    else:
        foreign = [folder.name]
    if foreign:
        raise OccupiedError(f"the folder of a piece of work holds what none has written: {enumerated(foreign)}.",
                            where=str(folder), remedy="Move it away, and the study does this piece.")
    shutil.rmtree(folder)

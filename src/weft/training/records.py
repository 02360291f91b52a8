"""The files of a run, read back: `run.json` and `metrics.jsonl`, every record of which is checked as it is read.

Others may have written into these files, or a disk may have damaged them. What a run reads of them is checked here and
nowhere else, so that the rest of training takes their types as given.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from weft.core.errors import CheckpointError, shortened
from weft.core.strict_json import number
from weft.disk.documents import parse_json, read_json, require_regular
from weft.parallel.mesh import MeshSettings
from weft.training.events import Progress, Validated

NAMES: dict[str, dict[str, str]] = {
    Progress.name: {"loss": "train/loss", "bits_per_byte": "train/bits_per_byte", "lr": "train/lr",
                    "grad_norm": "train/grad_norm", "tokens_per_second": "speed/tokens_per_second", "mfu": "speed/mfu",
                    "resident_bytes": "memory/resident_bytes", "allocated_bytes": "memory/allocated_bytes"},
    Validated.name: {"bits_per_byte": "validation/bits_per_byte", "loss": "validation/loss"}}
"""For each event with metrics: its fields, and the names of their curves."""


class _Start(BaseModel):
    """The types of `weft.training.starting.StartWeights`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    path: str
    sha256: str
    tensors: int
    numbers: int
    fresh: list[str]
    left: list[str]
    grown: dict[str, int] = {}
    carried: dict[str, Any] = {}


class _Inexact(BaseModel):
    """A step from which a run's weights are not those of an uninterrupted run."""

    model_config = ConfigDict(extra="allow", strict=True)

    step: int
    reason: str


class _RunFile(BaseModel):
    """The types of what `weft.training.resuming.description` writes. `Compute` checks
    its own record."""

    model_config = ConfigDict(extra="allow", strict=True)

    id: Annotated[str, Field(min_length=1)]
    config: dict[str, Any]
    steps: Annotated[int, Field(ge=0)]
    corpus: str
    corpus_sha256: str
    tokenizer_sha256: str
    compute: dict[str, Any]
    software: dict[str, str]
    inexact: list[_Inexact]
    ranks: Annotated[int, Field(ge=1)]
    mesh: MeshSettings
    arithmetic: dict[str, str]
    code: dict[str, str]
    start: _Start | None


def read_run_file(path: Path) -> dict[str, Any]:
    """The content of a run's `run.json`, as it stands there. Raises `CheckpointError`: the file cannot be read, lacks a
    field, or a field has another type; every problem is named."""
    try:
        content = read_json(path)
        if not isinstance(content, dict):
            raise ValueError(f"it holds {type(content).__name__}, and the record of a run is an object")
        _RunFile.model_validate(content)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the file is damaged ({_reason(error)}).", where=str(path),
                              remedy="Put a copy of it back, or start the run again in another folder.") from None
    return content


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The records of all events in a run's `metrics.jsonl`, in order; none where there is no such file. A last line
    without an end, as a process leaves it that is killed while it writes, is left out. Raises `CheckpointError`: the
    file cannot be read, or another line is no record of an event."""
    try:
        require_regular(path)
        text = path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the metrics of the run cannot be read ({_reason(error)}).", where=str(path),
                              remedy="Move them away: the run goes on without them.") from None
    *lines, _ = text.split("\n")
    return [_event(line, f"{path}, line {place}") for place, line in enumerate(lines, 1)]


def scalars_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The curves' names and values in the record of an event."""
    names = NAMES.get(record["event"], {})
    values = record["validation"] if record["event"] == Validated.name else record
    measures = {f"validation/{name}": number(value) for name, value in values.get("measures", {}).items()}
    if record["event"] == Progress.name:
        measures |= {f"train/loss.{name}": number(value) for name, value in record.get("sources", {}).items()}
    return measures | {name: number(values[field]) for field, name in names.items() if values.get(field) is not None}


def _event(line: str, where: str) -> dict[str, Any]:
    try:
        record = parse_json(line)
        if type(record["step"]) is not int or type(record["event"]) is not str:
            raise TypeError
        scalars_of(record)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise CheckpointError(f"this is no event of a run: {shortened(line, 80)!r}.", where=where,
                              remedy="Delete the line, or move the file away: the run goes on without it.") from None
    return dict(record)


def _reason(error: OSError | ValueError) -> str:
    """Why a file cannot be used, in one line."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

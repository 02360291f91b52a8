"""Predictions for every record of a file: classes, values, classes of words, translations, continuations or vectors.

Predictions are kept as they are made, in a folder beside the file that is to be written. So a job that was stopped goes
on, and the file appears when it is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, final

from weft.api.models import Model, load
from weft.api.prediction_kinds import Given, PredictionKind, PredictionSettings, kind_of
from weft.checkpoints import Loaded
from weft.checkpoints.tensors import own_tensors, tensors_digest
from weft.core.errors import ConfigError, DataError, InputError
from weft.core.strict_json import Record, digest, dumps
from weft.core.version import VERSION
from weft.data.record_files import has_fields, read_file, require_format, write_file
from weft.data.records import TEXT_FIELD, values_in
from weft.disk import atomic
from weft.disk.documents import Unreadable, read_json
from weft.disk.lock import LOCK_FILE, WorkFolder, held
from weft.disk.manifest import sha256_of
from weft.disk.ownership import require_free

JOB, ROWS = "job.json", "predictions.jsonl"
WORK = WorkFolder("prediction", JOB, (ROWS,))
SORTED = 16
"""Batches whose records are put in the order of their lengths together, so that the rows of a batch are alike."""


@final
@dataclass(frozen=True)
class Predicted(Record):
    """How a file was predicted.

    Attributes:
        out: the file that was written.
        kind: of the predictions: ``classes``, ``values``, ``classes of words``, ``translations``, ``continuations`` or
            ``vectors``.
        records: number of records.
        before: how many of them an earlier call had predicted.
        cut: how many records are longer than the model's context, and were cut at the end.
    """

    out: str
    kind: str
    records: int
    before: int
    cut: int


def predict(model: Model, path: str | Path, out: str | Path, asked: PredictionSettings | None = None, *,
            told: Callable[[int, int], None] = lambda done, total: None) -> Predicted:
    """Predict for every record of a file, and write the records with their predictions to a new file.

    The model decides what is predicted: a classifier classes with their probabilities, or values; a tagger the class of
    every word, and spans where classes are in BIO form; an encoder-decoder the target of the text; a model of the next
    token the continuation of the text, the most probable token at every step. Records keep their fields and order. The
    same call goes on where an earlier one was stopped, by what it has left in a folder beside ``out`` whose
    suffix is .partial.

    Args:
        model: the checkpoint.
        path: JSON Lines, a JSON array, CSV, TSV or Parquet; of any other file each line is a text. It may be
            compressed.
        out: the file to write: .jsonl, .csv, .tsv or .parquet.
        asked: what is read and predicted, and how.
        told: is given the number of records that this call has predicted, and of those that it has to predict.

    Raises:
        InputError: a setting does not apply to what the model predicts.
        UnsupportedError: the model predicts nothing of a text.
        DataError: a record lacks a field or text, or has a field of the name of a prediction. Nothing is written.
        OccupiedError: something is at ``out``.
        ConfigError: that folder is of another call, or holds other files.
    """
    loaded, path, out = load(model), Path(path), Path(out)
    require_format(out)
    require_free(out, single=True)
    asked = asked or PredictionSettings()
    kind = _for_file(kind_of(loaded, asked), asked, path)
    total, cut = _counted(kind, path)
    folder = out.with_suffix(".partial")
    WORK.require_room(folder)
    with atomic.made(folder), held(folder, "predicting"):
        before = _begun(folder, _identity(loaded, asked, path))
        with (folder / ROWS).open("ab") as rows:
            _run(kind, path, asked.batch_size, before, total, rows, told)
        write_file(out, lambda: _completed(path, folder / ROWS))
    _remove(folder)
    return Predicted(str(out), kind.name, total, before, cut)


def _for_file(kind: PredictionKind, asked: PredictionSettings, path: Path) -> PredictionKind:
    """The kind with the fields that it reads of a file: of one without fields the lines. Raises `InputError`: fields of
    such a file, or two texts of a line."""
    if has_fields(path):
        return kind
    named = [name for name in kind.fields if getattr(asked, name) is not None]
    if named or len(kind.fields) > 1:
        raise InputError("a file of lines, each of which is one text, has no fields.", where=(named or ["path"])[0],
                         remedy="Give JSON Lines, a JSON array, CSV, TSV or Parquet, or leave the field out.")
    return kind._replace(fields=dict.fromkeys(kind.fields, TEXT_FIELD))


def _counted(kind: PredictionKind, path: Path) -> tuple[int, int]:
    """The number of records, and of those that are cut. Raises `DataError`: one of them cannot be predicted."""
    total = cut = 0
    for where, record in read_file(path):
        _, _, shortened = _given(kind, where, record)
        taken = next((name for name in kind.gained if name in record), None)
        if taken is not None:
            raise DataError(f"the record has a field {taken!r} already, which its prediction would replace.",
                            where=where, remedy="Give the field another name.")
        total += 1
        cut += shortened
    if not total:
        raise DataError("the file has no records.", where=str(path), remedy="Give a file that has some.")
    return total, cut


def _given(kind: PredictionKind, where: str, record: dict[str, Any]) -> Given:
    return kind.encode(values_in(record, kind.fields, where), where)


def _identity(loaded: Loaded, asked: PredictionSettings, path: Path) -> dict[str, str]:
    """The file, the model and the settings on which predictions depend."""
    return {"file": sha256_of(path), "model": tensors_digest(own_tensors(loaded.model)),
            "settings": digest(asdict(replace(asked, batch_size=1))), "weft": VERSION}


def _begun(folder: Path, identity: dict[str, str]) -> int:
    """The number of records that an earlier call has predicted; what it wrote of one more is removed. Raises
    `ConfigError`: another file, model or settings."""
    job, rows = folder / JOB, folder / ROWS
    if not job.exists():
        atomic.write_file(job, dumps(identity, indent=1) + "\n")
        return 0
    try:
        known = read_json(job)
    except (OSError, ValueError, Unreadable):
        known = {}
    other = [name for name, value in identity.items() if known.get(name) != value]
    if other:
        raise ConfigError([f"out: the folder {folder} holds the predictions of an earlier call, which had another "
                           f"{', another '.join(other)}. Repeat that call, delete the folder, or choose another out."])
    if not rows.exists():
        return 0
    count = whole = 0
    with rows.open("rb") as lines:
        for line in lines:
            count, whole = (count + 1, whole + len(line)) if line.endswith(b"\n") else (count, whole)
    os.truncate(rows, whole)
    return count


def _run(kind: PredictionKind, path: Path, size: int, before: int, total: int, rows: BinaryIO,
         told: Callable[[int, int], None]) -> None:
    """Predict the records after the first ``before``, and write a line of fields for each."""
    told(0, total - before)
    left: Iterator[tuple[str, dict[str, Any]]] = islice(read_file(path), before, None)
    done = 0
    while group := [_given(kind, *each) for each in islice(left, SORTED * size)]:
        order = sorted(range(len(group)), key=lambda place: group[place][1])
        found = dict[int, dict[str, Any]]()
        for first in range(0, len(order), size):
            chosen = order[first:first + size]
            found |= zip(chosen, kind.predict([group[place][0] for place in chosen]), strict=True)
            told(done + len(found), total - before)
        rows.write("".join(f"{dumps(found[place])}\n" for place in range(len(group))).encode())
        rows.flush()
        done += len(group)


def _completed(path: Path, rows: Path) -> Iterator[dict[str, Any]]:
    """The records with what they have gained."""
    with rows.open("rb") as lines:
        for (_, record), line in zip(read_file(path), lines, strict=True):
            yield {**record, **json.loads(line)}


def _remove(folder: Path) -> None:
    """Remove what this job has written, and the folder if nothing else is in it."""
    for name in (ROWS, JOB, LOCK_FILE):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()

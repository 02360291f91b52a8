"""Files of records with all their fields: reading any format, and writing JSON Lines, CSV, TSV and Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from weft.core.errors import DataError, InputError, MissingExtra
from weft.core.strict_json import dumps
from weft.data.compression import ARRAY_SUFFIXES, content_suffix
from weft.data.pairs import lines_of
from weft.data.records import (
    DELIMITERS,
    JSONL_SUFFIXES,
    PARQUET_SUFFIXES,
    RECORD_SUFFIXES,
    TABLE_SUFFIXES,
    TEXT_FIELD,
    table_rows,
    whole_records,
)
from weft.disk.atomic import new_file

Fields: TypeAlias = dict[str, Any]
WRITTEN = (*sorted(JSONL_SUFFIXES), *DELIMITERS, *PARQUET_SUFFIXES)
GROUP = 1_024
"""Records of one group of rows of a Parquet file."""


def has_fields(path: Path) -> bool:
    """Whether a file's records have fields, by its name: JSON, a table or Parquet."""
    return content_suffix(path) in TABLE_SUFFIXES | RECORD_SUFFIXES | ARRAY_SUFFIXES


def read_file(path: Path) -> Iterator[tuple[str, Fields]]:
    """The records of a file, each with its place for messages. A file that is neither JSON, a table nor Parquet has a
    record for each line, whose field is ``text``.

    Raises:
        DataError: the file cannot be read, or a record is broken or no object.
        MissingExtra: a Parquet file, and the package ``pyarrow`` is not installed.
    """
    suffix = content_suffix(path)
    if suffix in TABLE_SUFFIXES:
        yield from ((f"{path}, line {number}", row) for number, row in table_rows(path, suffix))
    elif has_fields(path):
        for _, where, record in whole_records(path, suffix):
            if not isinstance(record, dict):
                raise DataError(f"a {type(record).__name__}, while a record is an object with fields.", where=where,
                                remedy='Write records such as {"text": "..."}.')
            yield where, record
    else:
        yield from ((f"{path}, line {number}", {TEXT_FIELD: line}) for number, line in enumerate(lines_of(path), 1))


def require_format(path: Path) -> None:
    """Refuse a path by whose suffix no format is known that can be written. Raises `InputError`; or `MissingExtra`: the
    package that writes it is not installed."""
    if path.suffix.lower() not in WRITTEN:
        raise InputError(f"no format is known by the name {path.name!r}.", where=str(path),
                         remedy=f"Give a name that ends in {', '.join(WRITTEN[:-1])} or {WRITTEN[-1]}.")
    if path.suffix.lower() in PARQUET_SUFFIXES:
        _parquet()


def write_file(path: Path, records: Callable[[], Iterable[Fields]]) -> None:
    """Write records to a new file in the format of its suffix. Tables have a column for each field of any record, and
    for each of a field's own fields where it is an object (``probabilities.good``); lists are written as JSON.

    Args:
        records: returns them; of a table or Parquet it is called twice, since the columns stand before the rows.

    Raises:
        OccupiedError: something is at ``path``.
        DataError: the values of a field have types that no column of Parquet holds together.
    """
    suffix = path.suffix.lower()
    with new_file(path) as draft:
        if suffix in PARQUET_SUFFIXES:
            _write_parquet(draft, records)
        elif suffix in DELIMITERS:
            _write_table(draft, DELIMITERS[suffix], records)
        else:
            with draft.open("w", encoding="utf-8") as file:
                file.writelines(f"{dumps(record)}\n" for record in records())


def _write_table(path: Path, delimiter: str, records: Callable[[], Iterable[Fields]]) -> None:
    names = _names(dict(_flat(record)) for record in records())
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        rows.writerow(names)
        for record in records():
            flat = dict(_flat(record))
            rows.writerow([_cell(flat.get(name)) for name in names])


def _names(records: Iterable[Fields]) -> list[str]:
    """The fields of any record, each once."""
    return list(dict.fromkeys(name for record in records for name in record))


def _flat(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{inner}", each) for inner, each in value.items())
        else:
            yield name, value


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | Mapping) else value


def _write_parquet(path: Path, records: Callable[[], Iterable[Fields]]) -> None:
    arrow, parquet = _parquet()
    try:
        schemas = [arrow.table({name: [record.get(name) for record in group] for name in _names(group)}).schema
                   for group in _groups(records())]
        schema = arrow.unify_schemas(schemas, promote_options="permissive")
        with parquet.ParquetWriter(path, schema) as writer:
            for group in _groups(records()):
                writer.write_table(arrow.Table.from_pylist(group, schema=schema))
    except arrow.ArrowException as error:
        raise DataError(f"the records cannot be written as Parquet ({error}).", where=path.name,
                        remedy="Write .jsonl, in which a field may have values of several types.") from None


def _groups(records: Iterable[Fields]) -> Iterator[list[Fields]]:
    left = iter(records)
    while group := list(islice(left, GROUP)):
        yield group


def _parquet() -> tuple[Any, Any]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data", "writing Parquet files") from None
    return pyarrow, parquet

"""Files of records: JSON Lines, Parquet, and tables (CSV, TSV), of which some fields are read.

Tables of values in text: CSV and TSV, whose first line names the fields.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from weft.core.errors import DataError, nearest
from weft.data.compression import ARRAY_SUFFIXES, RELEASED, Content, array_records, mark_bytes, read_content, release
from weft.data.parquet import parquet_rows
from weft.data.utf8 import decoded
from weft.disk.documents import Unreadable, parse_json

JSONL_SUFFIXES = frozenset({".jsonl", ".ndjson"})
PARQUET_SUFFIXES = frozenset({".parquet"})
RECORD_SUFFIXES = JSONL_SUFFIXES | PARQUET_SUFFIXES
TEXT_FIELD = "text"
"""The default field of the text."""

Fields: TypeAlias = Mapping[str, str]
"""Fields that are read, in order, by the setting that names each: ``{"text_field": "body"}``. The name of a setting is
the kind of content followed by ``_field``."""


class TextRecord(NamedTuple):
    """One record.

    Attributes:
        number: of its line or row, from 1.
        where: file and line, for messages.
        values: of the requested fields, in their order.
    """

    number: int
    where: str
    values: tuple[Any, ...]


def records(path: Path, suffix: str, fields: Fields) -> Iterator[TextRecord]:
    """The records of a file, in order.

    Args:
        path: the file, compressed or not.
        suffix: of its format: one of ``RECORD_SUFFIXES`` or ``TABLE_SUFFIXES``.

    Raises:
        DataError: a record is broken or lacks a field; ``where`` has its line or row.
        MissingExtra: a Parquet file, and the package ``pyarrow`` is not installed.
    """
    if suffix in TABLE_SUFFIXES:
        for number, row in table_rows(path, suffix):
            where = f"{path}, line {number}"
            yield TextRecord(number, where, values_in(row, fields, where))
    else:
        read = _jsonl if suffix in JSONL_SUFFIXES else _parquet
        yield from read(path, fields)


def field_names(path: Path, suffix: str) -> tuple[str, ...]:
    """The fields of the first record of a table or a JSON Lines file; none if it has no record. Raises `DataError`: the
    record is broken; ``where`` has its line."""
    if suffix in TABLE_SUFFIXES:
        return tuple(next((row for _, row in table_rows(path, suffix)), {}))
    content = read_content(path)
    for number, (line, last) in enumerate(_lines(content), 1):
        if line.strip():
            record = _json(line, f"{path}, line {number}", last=last)
            return tuple(record) if isinstance(record, dict) else ()
    return ()


def text_of(value: Any, setting: str, field: str, where: str) -> str:
    """A field's value, which must be text that UTF-8 can express. Raises `DataError`: it is not."""
    if not isinstance(value, str):
        found = "null" if value is None else f"a {type(value).__name__}"
        raise DataError(f"the field {field!r} holds {found}, not text.", where=where,
                        remedy=f"Correct or remove that record, or name another field with {setting}.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise DataError(f"the character U+{code:04X} at position {error.start} of the field {field!r} is half a "
                        "surrogate pair, which UTF-8 cannot express.", where=where,
                        remedy="Correct or remove that record.") from None
    return value


def whole_records(path: Path, suffix: str) -> Iterator[tuple[int, str, Any]]:
    """The records of a file with all their fields: the number of each (of the item in an array, many of which may
    stand in one line), its place for messages, and its content, which should be an object.

    Args:
        path: the file, compressed or not.
        suffix: of its format: one of ``RECORD_SUFFIXES`` or ``ARRAY_SUFFIXES``.

    Raises:
        DataError: a record is broken; ``where`` has its line or row.
        MissingExtra: a Parquet file, and the package ``pyarrow`` is not installed.
    """
    if suffix in ARRAY_SUFFIXES:
        for number, (line, item) in enumerate(array_records(path), 1):
            yield number, f"{path}, line {line}", item
    elif suffix in JSONL_SUFFIXES:
        yield from _objects(path)
    else:
        rows = parquet_rows(path, lambda names: names)
        yield from ((number, f"{path}, row {number}", row) for number, row in enumerate(rows, 1))


def _jsonl(path: Path, fields: Fields) -> Iterator[TextRecord]:
    for number, where, found in _objects(path):
        yield TextRecord(number, where, values_in(found, fields, where))


def _objects(path: Path) -> Iterator[tuple[int, str, Any]]:
    """The content of each line that is not blank, with its number and its place for messages."""
    content = read_content(path)
    for number, (line, last) in enumerate(_lines(content), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield number, where, _json(line, where, last=last)


def _lines(content: Content) -> Iterator[tuple[bytes, bool]]:
    """Each line, with whether it is the last."""
    first, read = mark_bytes(content), 0
    while (end := content.find(b"\n", first)) >= 0:
        yield content[first:end], False
        first = end + 1
        if first - read > RELEASED:
            release(content)
            read = first
    yield content[first:], True


def _parquet(path: Path, fields: Fields) -> Iterator[TextRecord]:
    def wanted(names: Sequence[str]) -> Sequence[str]:
        _require_fields(fields, names, str(path))
        return list(fields.values())

    for number, row in enumerate(parquet_rows(path, wanted), 1):
        yield TextRecord(number, f"{path}, row {number}", tuple(row[field] for field in fields.values()))


def _json(line: bytes, where: str, *, last: bool) -> Any:
    # A file without a final line end may have been truncated in its last line.
    hint = " It is the file's last line: was the file cut off?" if last else ""
    try:
        return parse_json(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        what = f"not UTF-8: byte 0x{line[error.start]:02x} at offset {error.start} of the line.{hint}"
    except Unreadable as error:
        what = f"{error}.{hint}"
    raise DataError(what, where=where, remedy="Correct or remove that line.")


def values_in(record: Any, fields: Fields, where: str) -> tuple[Any, ...]:
    """The values of a record's fields. Raises `DataError`: it is no object, or lacks one."""
    if not isinstance(record, dict):
        raise DataError(f"a {type(record).__name__}, while each line of a JSONL file is an object with fields.",
                        where=where, remedy='Write lines such as {"text": "..."}.')
    _require_fields(fields, record, where)
    return tuple(record[field] for field in fields.values())


def _require_fields(fields: Fields, names: Iterable[str], where: str) -> None:
    names = list(names)
    for setting, field in fields.items():
        if field not in names:
            listed = ", ".join(map(repr, names)) or "none"
            hint = nearest(field, names) if names else "Give another file."
            raise DataError(f"no field {field!r}; the fields are: {listed}.", where=where,
                            remedy=f"Name the one that holds the {setting.removesuffix('_field')} with {setting}. "
                                   f"{hint}")


DELIMITERS = {".csv": ",", ".tsv": "\t"}
TABLE_SUFFIXES = frozenset(DELIMITERS)
LONGEST_FIELD = 1 << 27
"""Largest number of characters of a value; the csv module's default, 131,072, is less than many documents have."""


def table_rows(path: Path, suffix: str) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table below the first line, each with the number of the line in which it ends; blank lines are
    skipped.

    Values with the delimiter, a quote (doubled) or a line end are in double quotes (RFC 4180), in TSV too.

    Raises:
        DataError: the file is not UTF-8; its first line lacks names or has one twice; or a row, whose line is named,
            has more or fewer values or an open quote.
    """
    before, limit = 0, csv.field_size_limit(LONGEST_FIELD)
    try:
        rows = csv.reader(_text_lines(path), delimiter=DELIMITERS[suffix], strict=True)
        names, before = _names(next(rows, []), path), rows.line_num
        for row in rows:
            if row and len(row) != len(names):
                raise DataError(f"{len(row)} values, while the first line names {len(names)} fields.",
                                where=f"{path}, line {rows.line_num}",
                                remedy="Correct that row, or quote values that hold the delimiter or a line end.")
            before = rows.line_num
            if row:
                yield rows.line_num, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise DataError(f"the table cannot be read ({error}).", where=f"{path}, line {before + 1}",
                        remedy="Close every quote, and double quotes within quoted values.") from None
    finally:
        csv.field_size_limit(limit)


def _names(names: list[str], path: Path) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or not all(names) or twice:
        what = f"names {twice[0]!r} twice" if twice else "leaves a field without a name" if names else "is missing"
        raise DataError(f"the first line of the table {what}.", where=str(path),
                        remedy="Name every field once in the first line.")
    return names


def _text_lines(path: Path) -> Iterator[str]:
    """The lines of a file with their ends."""
    content = read_content(path)
    mark, held = mark_bytes(content), ""
    try:
        for part in decoded(memoryview(content)[mark:]):
            *whole, held = (held + part).split("\n")
            yield from (line + "\n" for line in whole)
    except UnicodeDecodeError as error:
        place = mark + error.start
        raise DataError(f"the file is not UTF-8: byte 0x{content[place]:02x} at offset {place}.", where=str(path),
                        remedy="Convert it to UTF-8.") from None
    if held:
        yield held

"""Texts in files of records: JSON Lines and Parquet, one text in a field of each record."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from weft.core.errors import DataError, MissingExtra, nearest
from weft.data.compression import Content, mark_bytes, read_bytes, read_content

JSONL_SUFFIXES = frozenset({".jsonl", ".ndjson"})
PARQUET_SUFFIXES = frozenset({".parquet"})
RECORD_SUFFIXES = JSONL_SUFFIXES | PARQUET_SUFFIXES
TEXT_FIELD = "text"
"""The field that holds the text unless another is named."""

Numbered = tuple[int, str]
"""A record's line or row, from 1, and its text."""


def record_texts(path: Path, suffix: str, field: str = TEXT_FIELD) -> Iterator[Numbered]:
    """The text of each record of a file, in order.

    Args:
        path: the file, compressed or not.
        suffix: what it holds, one of ``RECORD_SUFFIXES``.
        field: the field that holds the text.

    Raises:
        DataError: with the line or row: a record that is broken, lacks the field, or holds no text in it.
        MissingExtra: a Parquet file without the package ``pyarrow``.
    """
    texts = jsonl_texts(path, field) if suffix in JSONL_SUFFIXES else parquet_texts(path, field)
    unit = "line" if suffix in JSONL_SUFFIXES else "row"
    for number, text in texts:
        yield number, _text(text, field, f"{path}, {unit} {number}")


def jsonl_texts(path: Path, field: str) -> Iterator[tuple[int, Any]]:
    """The value of ``field`` in each line that is not blank, with the line's number.

    Raises:
        DataError: with file and line: not UTF-8, not JSON, not an object, or without the field.
    """
    content = read_content(path)
    for number, (line, last) in enumerate(_lines(content), 1):
        if line.strip():
            record = _json(line, f"{path}, line {number}", last=last)
            yield number, _field(record, field, f"{path}, line {number}")


def _lines(content: Content) -> Iterator[tuple[bytes, bool]]:
    """Each line, and whether it is the last."""
    first = mark_bytes(content)
    while (end := content.find(b"\n", first)) >= 0:
        yield content[first:end], False
        first = end + 1
    yield content[first:], True


def parquet_texts(path: Path, field: str) -> Iterator[tuple[int, Any]]:
    """The value of ``field`` in each row, with the row's number.

    Raises:
        DataError: not Parquet, truncated, or without the field.
        MissingExtra: the package ``pyarrow`` is not installed.
    """
    try:
        import pyarrow as arrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError:
        raise MissingExtra("pyarrow", "data", "reading Parquet files") from None
    try:
        file = parquet.ParquetFile(io.BytesIO(read_bytes(path)))
        names = file.schema_arrow.names
        _require_field(field, names, str(path))
        texts = (text for batch in file.iter_batches(columns=[field]) for text in batch.column(0).to_pylist())
        yield from enumerate(texts, 1)
    except (arrow.ArrowException, OSError) as error:
        what = f"the file is not Parquet, or is truncated or damaged ({' '.join(str(error).split())})."
        raise DataError(what, where=str(path), remedy="Copy or download it again, whole.") from None


def _json(line: bytes, where: str, *, last: bool) -> Any:
    # A file that ends without a line end may have been cut off in its last line.
    hint = " It is the file's last line: was the file cut off?" if last else ""
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        what = f"not UTF-8: byte 0x{line[error.start]:02x} at offset {error.start} of the line.{hint}"
    except ValueError as error:
        what = f"not JSON ({error}).{hint}"
    except RecursionError:
        what = "JSON that is nested too deeply."
    raise DataError(what, where=where, remedy="Correct or remove that line.")


def _field(record: Any, field: str, where: str) -> Any:
    if not isinstance(record, dict):
        raise DataError(
            f"a {type(record).__name__}, while each line of a JSONL file is an object with fields.",
            where=where,
            remedy='Write lines such as {"text": "..."}.',
        )
    _require_field(field, record, where)
    return record[field]


def _require_field(field: str, names: Iterable[str], where: str) -> None:
    names = list(names)
    if field not in names:
        listed = ", ".join(map(repr, names)) or "none"
        hint = nearest(field, names) if names else "Give another file."
        raise DataError(f"no field {field!r}; the fields are: {listed}.", where=where,
                        remedy=f"Name the one that holds the text with text_field. {hint}")


def _text(value: Any, field: str, where: str) -> str:
    if not isinstance(value, str):
        found = "null" if value is None else f"a {type(value).__name__}"
        raise DataError(f"the field {field!r} holds {found}, not text.", where=where,
                        remedy="Correct or remove that record, or name another field with text_field.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise DataError(f"the character U+{code:04X} at position {error.start} of the field {field!r} is half a "
                        "surrogate pair, which UTF-8 cannot express.", where=where,
                        remedy="Correct or remove that record.") from None
    return value

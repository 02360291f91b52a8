"""Corpora of records: each record is a document that holds the values of some of its fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from weft.core.errors import DataError
from weft.data.compression import content_suffix
from weft.data.corpus import Corpus
from weft.data.document import Document
from weft.data.document_buffer import Documents, SpanTable, TextRange, columns_of
from weft.data.places import Where, files_of
from weft.data.records import RECORD_SUFFIXES, TABLE_SUFFIXES, Fields, TextRecord, records, text_of
from weft.data.spooled import Spool
from weft.data.text import nothing

ROW_SUFFIXES = RECORD_SUFFIXES | TABLE_SUFFIXES
Values = Callable[[TextRecord], tuple[Any, ...]]
"""Checks a record and returns the values that are kept of it."""


def read_rows(path: Where, fields: Fields, keep: Values) -> Corpus:
    """The records of a file, or of the files of a folder in the order of their paths: JSON Lines, Parquet, CSV or TSV,
    compressed or not.

    Each record is a document that is never cut. Its text is read back by `values_of`, so a corpus of records is hashed,
    limited and split like one of texts.

    Args:
        path: the file, folder, pattern or list of them.
        keep: checks a record's values and returns those that are kept, as plain JSON data; it raises for a wrong
            record.

    Raises:
        DataError: the path is missing or cannot be read, a file has another format, there is no record, or one is
            broken.
        MissingExtra: Parquet or ``.zst``, and the package that reads it is not installed.
    """
    files = files_of(path, ROW_SUFFIXES)
    found = Documents([
        json_table(name, str(file), ((record.number, record.where, keep(record)) for record in records(
            file, require_suffix(file, ROW_SUFFIXES, "records"), fields))) for file, name in files.named()])
    if not found:
        raise nothing(path, ROW_SUFFIXES)
    return Corpus(files.name, found, whole=True)


def values_of(row: Document) -> list[Any]:
    """The values that were kept of a record."""
    found: list[Any] = json.loads(bytes(row.utf8))
    return found


def json_table(name: str, where: str, kept: Iterable[tuple[int, str, Any]]) -> SpanTable:
    """A document of plain JSON data for each record.

    Args:
        name: of the file; documents are named after it and their number.
        where: the data's name, for messages.
        kept: the number of each record, its place for messages, and what is kept of it.

    Raises:
        DataError: UTF-8 cannot express what is kept.
    """
    spool = Spool(where)

    def spans() -> Iterator[TextRange]:
        for number, place, content in kept:
            first = spool.size
            text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
            spool.add(text_of(text, "record", "record", place).encode())
            yield TextRange(first, spool.size, number)

    columns = columns_of(spans())
    return SpanTable(name, spool.view(), columns)


def require_suffix(file: Path, suffixes: Collection[str], what: str) -> str:
    """The suffix of a file of records. Raises `DataError`: it is none of ``suffixes``."""
    suffix = content_suffix(file)
    if suffix not in suffixes:
        raise DataError(f"the file's name ends in {suffix or 'nothing'}, and {what} are read from files of "
                        f"{' '.join(sorted(suffixes))}.", where=str(file),
                        remedy="Give such a file, or rename it to the suffix of its format.")
    return suffix

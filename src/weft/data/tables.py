"""Tables of values in text: CSV and TSV, whose first line names the fields."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from weft.core.errors import DataError
from weft.data.compression import mark_bytes, read_content
from weft.data.utf8 import decoded

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

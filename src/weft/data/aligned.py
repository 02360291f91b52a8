"""Text files of which line i of one belongs to line i of the others, as records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from weft.core.errors import DataError
from weft.data.corpus import Corpus
from weft.data.documents import Documents
from weft.data.places import Where
from weft.data.records import Fields, TextRecord
from weft.data.rows import Values, json_table, read_rows
from weft.data.text import read_document

PLACE = "{}"
"""Stands in a path for the name of a field, so that the path names a file for each field."""

LINE = re.compile(rb"[^\n]*\n|[^\n]+")


def read_aligned(path: Where, fields: Fields, keep: Values) -> Corpus:
    """Records from one text file for each field, or from files of records.

    A path with ``{}`` names text files: the name of each field stands there, so that ``corpus.{}.gz`` and the fields
    ``en`` and ``de`` mean ``corpus.en.gz`` and ``corpus.de.gz``. Record i consists of line i of each. Lines end at line
    feeds alone, before which a carriage return is left out. Any other path is read by `weft.data.rows.read_rows`.

    Args:
        path: with or without ``{}``.
        fields: whose names stand in the path, by the setting that gives each.
        keep: checks a record's lines, in the order of the fields, and returns what is kept of them.

    Raises:
        DataError: as `read_rows`; the files have different numbers of lines; or a line is empty.
        MissingExtra: as `read_rows`.
    """
    if not isinstance(path, str | Path) or PLACE not in str(path):
        return read_rows(path, fields, keep)
    files = [Path(str(path).replace(PLACE, name)) for name in fields.values()]
    for file, (setting, name) in zip(files, fields.items(), strict=True):
        if not file.is_file():
            raise DataError("no such file.", where=str(file),
                            remedy=f"The path is {path}, and {setting} is {name!r}; correct one of them.")
    name = Path(path).name
    return Corpus(name, Documents([json_table(name, name, _kept(name, files, keep))]), whole=True,
                  files=tuple(map(str, files)))


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file, compressed or not, without their ends.

    Raises:
        DataError: the file cannot be read, or is damaged, binary or not UTF-8.
    """
    whole = (str(found[0], "utf-8") for found in LINE.finditer(read_document(path)))
    return (line.removesuffix("\n").removesuffix("\r") for line in whole)


def _kept(name: str, files: list[Path], keep: Values) -> Iterator[tuple[int, str, Any]]:
    """The number of each line, its place, and what is kept of the lines of that number."""
    number = 0
    for number, lines in enumerate(zip_longest(*map(lines_of, files)), 1):
        _require_lines(files, lines, number)
        place = f"{name}, line {number}"
        yield number, place, keep(TextRecord(number, place, lines))
    if not number:
        raise DataError("the file is empty.", where=str(files[0]), remedy="Give files that have text.")


def _require_lines(files: list[Path], lines: tuple[str | None, ...], number: int) -> None:
    for file, line in zip(files, lines, strict=True):
        if line is None:
            other = files[next(place for place, each in enumerate(lines) if each is not None)]
            raise DataError(f"the file has {number - 1:,} lines, and {other} has more; line i of one belongs to line i "
                            "of the other.", where=str(file),
                            remedy="Give files with the same number of lines, from the same corpus.")
        if not line.strip():
            raise DataError("the line is empty.", where=f"{file}, line {number}",
                            remedy=f"Fill it in, or remove line {number} from every file.")

"""The unpacked sizes of a Parquet file's pages, read from its description and the pages' headers before one is
unpacked.

Both are structures of Thrift (Apache Parquet, ``parquet.thrift``). The package pyarrow tells of the description too,
but a column of which it finds something amiss (a histogram of another length than the schema's levels, a key to
encrypted columns) ends the process there, while it raises an error where the column is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from weft.data.thrift import I32, I64, Content, Malformed, Shape, read_struct

TAIL = 8
"""Bytes after the description: its length and the format's name."""
TYPE, UNPACKED, PACKED = 1, 2, 3
DATA, DICTIONARY, DATA_2 = 0, 2, 3
"""Types of pages."""
HEADS = {DATA: (5, 2), DICTIONARY: (7, 2), DATA_2: (8, 4)}
"""Of a page of each type: the field of its own head, and the head's field that says the encoding."""
NUM_VALUES = 1
BY_DICTIONARY = (2, 8)
"""Encodings whose values are places in the dictionary."""
HEADER: dict[int, Shape] = {TYPE: I32, UNPACKED: I32, PACKED: I32,
                           **{head: {NUM_VALUES: I32, encoding: I32} for head, encoding in HEADS.values()}}
GROUPS, COLUMNS, ROWS, COLUMN = 4, 1, 3, 3
CODEC, VALUES, SIZE, DATA_AT, DICTIONARY_AT = 4, 5, 7, 9, 11
DESCRIPTION: dict[int, Shape] = {GROUPS: [{
    COLUMNS: [{COLUMN: {CODEC: I32, VALUES: I64, SIZE: I64, DATA_AT: I64, DICTIONARY_AT: I64}}], ROWS: I64}]}
CODECS = {0: "", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
"""Names by which pyarrow unpacks."""
DAMAGE = (IndexError, KeyError, Malformed)
"""What reading raises of a structure that is not what the format says."""


class Page(NamedTuple):
    """A page, as its header says.

    Attributes:
        unpacked: bytes once it is unpacked.
        values: how many it holds.
        coded: how many of these are places in a dictionary.
        dictionary: where its packed content begins and ends, if it is a dictionary.
    """

    unpacked: int
    values: int
    coded: int
    dictionary: tuple[int, int] | None


class Chunk(NamedTuple):
    """The pages of a column that belong to some rows.

    Attributes:
        start, end: where they begin and end in the file.
        values: how many they hold, as far as they are read.
        codec: pyarrow's name of how they are packed; empty if they are not.
    """

    start: int
    end: int
    values: int
    codec: str


class RowGroup(NamedTuple):
    """Some rows: how many, and their columns in the schema's order."""

    rows: int
    chunks: list[Chunk]


def groups(content: Content) -> list[RowGroup]:
    """The groups of rows that the description at the end of a file lists.

    Raises:
        Malformed: it is damaged.
    """
    try:
        size = int.from_bytes(content[-TAIL:-TAIL + 4], "little")
        fields, _ = read_struct(content[-TAIL - size:-TAIL], 0, DESCRIPTION)
        return [RowGroup(group[ROWS],
                         [_chunk(column[COLUMN]) for column in group[COLUMNS]]) for group in fields[GROUPS]]
    except DAMAGE as error:
        raise Malformed(f"the description of its columns is damaged: {_told(error)}") from None


def _chunk(column: dict[int, Any]) -> Chunk:
    # As pyarrow does: a dictionary counts where it lies before the other pages.
    start = column[DATA_AT]
    if 0 < column.get(DICTIONARY_AT, 0) < start:
        start = column[DICTIONARY_AT]
    if start < 0 or column[SIZE] < 0:
        raise Malformed("a column's place is negative")
    return Chunk(start, start + column[SIZE], column[VALUES], CODECS.get(column[CODEC], "another"))


def pages(content: Content, chunk: Chunk) -> Iterator[Page]:
    """The pages of a column.

    Raises:
        Malformed: a header is damaged before all values were found; where all were, nobody reads on.
    """
    place, end, left = chunk.start, min(len(content), chunk.end), chunk.values
    while place < end:
        try:
            header, place = read_struct(content, place, HEADER)
            page = _page(header, place)
            if min(header[PACKED], page.unpacked, page.values) < 0:
                raise Malformed("a size is negative")
        except DAMAGE as error:
            if left > 0:
                raise Malformed(f"the header of a page is damaged: {_told(error)}") from None
            return
        yield page
        left -= 0 if page.dictionary else page.values
        place += header[PACKED]


def _page(header: dict[int, Any], start: int) -> Page:
    kind, unpacked = header[TYPE], header[UNPACKED]
    if kind not in HEADS:  # a page of an index
        return Page(unpacked, 0, 0, None)
    place, encoding = HEADS[kind]
    values, how = header[place][NUM_VALUES], header[place][encoding]
    if kind == DICTIONARY:
        return Page(unpacked, values, 0, (start, start + header[PACKED]))
    return Page(unpacked, values, values if how in BY_DICTIONARY else 0, None)


def _told(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it lacks the field {error}"
    return "it ends early" if isinstance(error, IndexError) else str(error)


def longest_text(dictionary: bytes) -> int:
    """Bytes of the longest text of an unpacked dictionary: each follows its length in four bytes, little-endian."""
    place, longest = 0, 0
    while place + 4 <= len(dictionary):
        size = int.from_bytes(dictionary[place:place + 4], "little")
        place, longest = place + 4 + size, max(longest, size)
    return min(longest, len(dictionary))

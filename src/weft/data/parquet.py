"""Rows of Parquet files, read by the package pyarrow in batches that fit into memory.

A file of 300 bytes may hold gigabytes: a page of zeros, or a text that a dictionary has once and 4,096 rows name. So
pages are counted before one is unpacked, and batches have as few rows as the longest text of a dictionary demands.

The unpacked sizes of a Parquet file's pages, read from its description and the pages' headers before one is
unpacked.

Both are structures of Thrift (Apache Parquet, ``parquet.thrift``). The package pyarrow tells of the description too,
but a column of which it finds something amiss (a histogram of another length than the schema's levels, a key to
encrypted columns) ends the process there, while it raises an error where the column is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from weft.core.errors import DataError, MissingExtra
from weft.data.compression import ALWAYS_EXPANDED, MOST_TIMES, Content, read_content
from weft.data.thrift import I32, I64, Malformed, Shape, read_struct

MOST_ENTRIES = 100_000
"""Columns or row groups that the description of a file may list; a million columns take a minute to open."""
MOST_TEXT = 1 << 26
"""Bytes of a text in the description of a file."""
BATCH_ROWS, BATCH_BYTES = 1_024, 1 << 26
"""Rows that are in memory at a time, and about how many bytes; one row may have more."""
VALUE = 16
"""Bytes that a value counts for, however small it is."""


def parquet_rows(path: Path, columns: Callable[[Sequence[str]], Sequence[str]]) -> Iterator[dict[str, Any]]:
    """The rows of a file, in order.

    Args:
        columns: returns which of a file's columns are read; it may refuse them.

    Raises:
        DataError: the file is damaged, or what is read of it unpacks to more than `MOST_TIMES` its size.
        MissingExtra: the package ``pyarrow`` is not installed.
    """
    content = read_content(path)
    most = max(ALWAYS_EXPANDED, MOST_TIMES * len(content))
    with _damage_told(path):
        file = _opened(content)
        names = list(dict.fromkeys(columns(file.schema_arrow.names)))
        for batch in file.iter_batches(_batch_rows(content, file, set(names), most, path), columns=names):
            most -= batch.nbytes + VALUE * batch.num_rows
            if most < 0:
                raise _too_large(path, content)
            yield from _objects(batch, path)


def _opened(content: Content) -> Any:
    import pyarrow as arrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    return parquet.ParquetFile(arrow.BufferReader(content), thrift_container_size_limit=MOST_ENTRIES,
                               thrift_string_size_limit=MOST_TEXT)


def _batch_rows(content: Content, file: Any, names: set[str], most: int, path: Path) -> int:
    """How many rows may be read at a time.

    Raises:
        DataError: what is read unpacks to more than ``most`` bytes.
        Malformed: the file is damaged.
    """
    found, told = BATCH_ROWS, groups(content)
    columns = [file.schema.column(place) for place in range(len(file.schema))]
    if len(told) != file.num_row_groups or any(len(chunks) != len(columns) for _, chunks in told):
        raise Malformed("its groups of rows have other columns than it says")
    wanted = [place for place, column in enumerate(columns) if not names.isdisjoint(_prefixes(column.path))]
    for rows, chunks in told:
        for place in wanted:
            chunk, in_lists = chunks[place], columns[place].max_repetition_level > 0
            held = list(pages(content, chunk))
            size = sum(max(page.unpacked, VALUE * page.values) for page in held)
            longest = _longest(content, chunk, columns[place].physical_type, held)
            coded = sum(page.coded for page in held) * longest
            most -= size + (coded if in_lists else 0)
            if most < 0:
                raise _too_large(path, content)
            # Of a list that a row has, nothing says how long it is.
            row = (size + coded) // max(1, rows) if in_lists else max(
                longest, *(page.unpacked // max(1, page.values) for page in held), 1)
            found = min(found, BATCH_BYTES // max(1, row))
    return max(1, found)


def _prefixes(path: str) -> Iterator[str]:
    """The names by which pyarrow takes a column that lies in others: ``a``, ``a.b`` and ``a.b.c`` for ``a.b.c``."""
    yield from accumulate(path.split("."), "{}.{}".format)


def _longest(content: Content, chunk: Chunk, kind: str, held: Sequence[Page]) -> int:
    """Bytes of the longest value of a column's dictionaries, or a few more."""
    import pyarrow as arrow

    coded, longest = sum(page.coded for page in held), 0
    for page in held:
        if page.dictionary is None:
            continue
        bound = page.unpacked - 4 * (page.values - 1)  # each text follows its length
        if kind != "BYTE_ARRAY":
            bound = page.unpacked // max(1, page.values)
        elif coded * bound > BATCH_BYTES and page.unpacked <= BATCH_BYTES:
            try:
                packed = content[slice(*page.dictionary)]
                bound = longest_text(arrow.decompress(packed, page.unpacked, codec=chunk.codec, asbytes=True)
                                     if chunk.codec else packed)
            except (arrow.ArrowException, OSError, ValueError):
                pass  # another way of packing, or damage: the bound holds
        longest = max(longest, bound)
    return longest


def _objects(batch: Any, path: Path) -> list[dict[str, Any]]:
    """The rows of a batch as Python's objects."""
    import pyarrow as arrow

    try:
        return list(batch.to_pylist())
    except (arrow.ArrowException, UnicodeDecodeError):
        raise
    except (ValueError, OverflowError) as error:  # a time to the nanosecond, or after the year 9999
        what = f"the file holds a value that is no object of Python ({' '.join(str(error).split())})."
        raise DataError(what, where=str(path), remedy="Write that column as text, or leave it out.") from None


def _too_large(path: Path, content: Content) -> DataError:
    most = max(ALWAYS_EXPANDED, MOST_TIMES * len(content))
    what = (f"the file of {len(content):,} bytes unpacks to more than {most:,}; what is read has at most {MOST_TIMES} "
            "times its size.")
    return DataError(what, where=str(path), remedy="If that is right, write the rows as JSON Lines.")


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """Turn what the package raises inside the block into a `DataError`."""
    try:
        import pyarrow as arrow
    except ImportError:
        raise MissingExtra("pyarrow", "data", "reading Parquet files") from None
    try:
        yield
    except (arrow.ArrowException, OSError, UnicodeDecodeError, OverflowError, Malformed) as error:
        what = f"the file is not Parquet, or is truncated or damaged ({' '.join(str(error).split())})."
        raise DataError(what, where=str(path), remedy="Copy or download it again, whole.") from None


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


def groups(content: Content) -> list[tuple[int, list[Chunk]]]:
    """The groups of rows that the description at the end of a file lists: how many rows each has, and its columns in
    the schema's order. Raises `Malformed`: it is damaged."""
    try:
        size = int.from_bytes(content[-TAIL:-TAIL + 4], "little")
        fields, _ = read_struct(content[-TAIL - size:-TAIL], 0, DESCRIPTION)
        return [(group[ROWS], [_chunk(column[COLUMN]) for column in group[COLUMNS]]) for group in fields[GROUPS]]
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
    """The pages of a column. Raises `Malformed`: a header is damaged before all values were found; where all were,
    nobody reads on."""
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

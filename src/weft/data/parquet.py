"""Rows of Parquet files, read by the package pyarrow in batches that fit into memory.

A file of 300 bytes may hold gigabytes: a page of zeros, or a text that a dictionary has once and 4,096 rows name. So
pages are counted before one is unpacked, and batches have as few rows as the longest text of a dictionary demands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from weft.core.errors import DataError, MissingExtra
from weft.data.compression import ALWAYS_EXPANDED, MOST_TIMES, Content, read_content
from weft.data.parquet_pages import Chunk, Page, groups, longest_text, pages
from weft.data.thrift import Malformed

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
        path: the file.
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
    if len(told) != file.num_row_groups or any(len(group.chunks) != len(columns) for group in told):
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

"""Many documents in little memory: texts in one buffer and offsets in arrays; a `Document` is created on access."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple, TypeAlias, overload

import numpy as np
from jaxtyping import Integer

from weft.data.compression import RELEASED, release
from weft.data.document import Document

Places: TypeAlias = Integer[np.ndarray, " n"]
AT_ONCE = 1 << 16
"""Documents whose offsets are converted to Python integers together; these take ten times as much memory."""


class TextRange(NamedTuple):
    """The range of a document in a text.

    Attributes:
        first: the byte at which it begins.
        last: the byte before which it ends.
        number: of its line or row, from 1.
        unscored: bytes at its beginning that are read and not scored.
    """

    first: int
    last: int
    number: int
    unscored: int = 0


class Columns(NamedTuple):
    """Many spans: their first bytes, sizes, numbers, and bytes that are not scored."""

    first: Places
    size: Places
    number: Places
    unscored: Places


class SpanTable(Sequence[Document]):
    """Documents that are parts of one text. Each takes about 10 bytes besides that text, and at most 32.

    Args:
        name: of the file; documents are named after it and their number.
        content: the text in UTF-8.
        columns: their ranges, from `columns_of`.
    """

    def __init__(self, name: str, content: memoryview, columns: Columns) -> None:
        self.name, self.content = name, content
        self._first, self._size, self._number, self._unscored = columns

    def __len__(self) -> int:
        return len(self._first)

    @overload
    def __getitem__(self, place: int) -> Document: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Document]: ...
    def __getitem__(self, place: int | slice) -> Document | Sequence[Document]:
        if isinstance(place, slice):
            return Documents([self])[place]
        return next(self.those(np.array([range(len(self))[place]])))

    def __iter__(self) -> Iterator[Document]:
        return self.those(np.arange(len(self)))

    def those(self, places: Places) -> Iterator[Document]:
        """The documents at these indices, in that order."""
        read = 0
        for first in range(0, len(places), AT_ONCE):
            here = places[first:first + AT_ONCE]
            # tolist() of many at once: indexing arrays item by item takes ten times as long.
            columns = (column[here].tolist() for column in (self._first, self._size, self._number, self._unscored))
            for start, size, number, unscored in zip(*columns, strict=True):
                read += size
                if read > RELEASED:
                    release(self.content)
                    read = 0
                yield Document(f"{self.name}:{number}", self.content[start:start + size],
                               (0, unscored) if unscored else ())

    def sizes(self) -> Places:
        """Bytes of each."""
        return self._size


class Documents(Sequence[Document]):
    """Documents of several files in one order, or some of them.

    Args:
        tables: the documents of each file.
        chosen: indices of the selected documents, in order; None: all.
    """

    def __init__(self, tables: Iterable[Sequence[Document]], chosen: Places | None = None) -> None:
        self._tables = tuple(tables)
        self._ends = np.cumsum([len(table) for table in self._tables], dtype=np.int64)
        self._chosen = chosen

    def __len__(self) -> int:
        if self._chosen is not None:
            return len(self._chosen)
        return int(self._ends[-1]) if len(self._ends) else 0

    def __iter__(self) -> Iterator[Document]:
        if self._chosen is None:
            for part in self._tables:
                yield from part
            return
        table = np.searchsorted(self._ends, self._chosen, side="right")
        borders = [0, *(np.flatnonzero(np.diff(table)) + 1).tolist(), len(self._chosen)]
        for first, last in pairwise(borders if len(table) else []):
            found = self._tables[table[first]]
            places = self._chosen[first:last].astype(np.int64) - (self._ends[table[first]] - len(found))
            yield from found.those(places) if isinstance(found, SpanTable) else map(found.__getitem__, places.tolist())

    @overload
    def __getitem__(self, place: int) -> Document: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Document]: ...
    def __getitem__(self, place: int | slice) -> Document | Sequence[Document]:
        if isinstance(place, slice):
            return self.select(np.arange(len(self))[place])
        number = range(len(self))[place]
        if self._chosen is not None:
            number = int(self._chosen[number])
        table = int(np.searchsorted(self._ends, number, side="right"))
        return self._tables[table][number - int(self._ends[table] - len(self._tables[table]))]

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, Sequence) and len(self) == len(other)
                and all(mine == its for mine, its in zip(self, other, strict=True)))

    __hash__ = None  # type: ignore[assignment]

    def select(self, places: Places) -> Documents:
        """The documents at the given indices of this sequence, in that order."""
        chosen = places if self._chosen is None else self._chosen[places]
        return Documents(self._tables, narrow(chosen))

    def sizes(self) -> Places:
        """Bytes of each."""
        whole = np.concatenate([np.array([], dtype=np.uint8), *map(_sizes, self._tables)])
        return whole if self._chosen is None else whole[self._chosen]


def columns_of(spans: Iterable[TextRange]) -> Columns:
    """Spans as columns in the smallest dtypes that hold them; the iterable is consumed once."""
    waiting, columns = iter(spans), [[np.array([], dtype=np.uint8)] for _ in TextRange._fields]
    while block := list(islice(waiting, AT_ONCE)):
        first, last, number, unscored = np.array(block, dtype=np.int64).T
        for column, values in zip(columns, (first, last - first, number, unscored), strict=True):
            column.append(narrow(values))
    return Columns(*(np.concatenate(column) for column in columns))


def documents_of(documents: Sequence[Document]) -> Documents:
    """``documents`` as `Documents`."""
    return documents if isinstance(documents, Documents) else Documents([documents])


def _sizes(table: Sequence[Document]) -> Places:
    if isinstance(table, SpanTable):
        return table.sizes()
    return narrow(np.array([document.size_bytes for document in table], dtype=np.int64))


def narrow(values: Places) -> Places:
    """The same non-negative numbers in the smallest dtype that holds them."""
    found: Places = values.astype(np.min_scalar_type(values.max(initial=0)))
    return found

"""One array whose parts are in several files; only the items that are indexed are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int64, Shaped

from weft.data.stored_array import StoredArray

Part: TypeAlias = np.ndarray | StoredArray
"""An array of one dimension in memory, or in a file."""
PIECE = 1 << 22
"""Items of a file that are in memory at once where all of them are read."""


class JoinedArray:
    """Several arrays, in memory or in files, read as if they were one array of N.

    It supports what token streams need: items, slices, arrays of indices, length and copies. Items are NumPy scalars
    and arrays; a slice within one part that is in memory is a view, not a copy.

    Args:
        parts: at least one array of one dimension; the dtype is the smallest that holds all of theirs.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.dtype: np.dtype[Any] = np.result_type(*(part.dtype for part in self.parts))
        self._ends = np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def shape(self) -> tuple[int]:
        """(N,), as the shape of an array."""
        return (len(self),)

    def __getitem__(self, places: Any) -> Any:
        if isinstance(places, slice):
            return self._slice(*places.indices(len(self)))
        index = np.asarray(places)
        if index.dtype == np.bool_:
            index = np.flatnonzero(index)
        low, high = (index.min(), index.max()) if index.size else (0, -1)
        if low < -len(self) or high >= len(self):
            raise IndexError(f"places from {low} to {high} in an array of {len(self)}")
        found = self._gather(np.where(index < 0, index + len(self), index) if low < 0 else index)
        return found[()] if index.ndim == 0 else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Shaped[np.ndarray, " N"]:
        whole: np.ndarray = self[:]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def astype(self, dtype: Any) -> Shaped[np.ndarray, " N"]:
        """The whole array, in memory, as that dtype."""
        return np.concatenate([np.asarray(part).astype(dtype) for part in self.parts])

    def copy(self) -> Shaped[np.ndarray, " N"]:
        """The whole array, in memory."""
        return np.concatenate([self[:]])

    def tolist(self) -> list[Any]:
        """All items as a list."""
        items: list[Any] = self.copy().tolist()
        return items

    def max(self) -> Any:
        """The largest item."""
        return max(piece.max() for piece in self._pieces())

    def sum(self) -> int:
        """The sum of all items, exact."""
        return sum(int(piece.sum(dtype=np.int64)) for piece in self._pieces())

    def narrow(self, first: int, last: int) -> TokenArray:
        """The items from ``first`` up to ``last`` without a copy; of parts in files, without reading them."""
        ends = [(max(first - start, 0), max(last - start, 0)) for start in self._starts()]
        cuts = [part.narrow(*each) if isinstance(part, StoredArray) else part[slice(*each)]
                for part, each in zip(self.parts, ends, strict=True)]
        return join([cut for cut in cuts if len(cut)] or cuts[:1])

    def _starts(self) -> list[int]:
        starts: list[int] = (self._ends - [len(part) for part in self.parts]).tolist()
        return starts

    def _pieces(self) -> Iterator[Shaped[np.ndarray, " n"]]:
        for part in self.parts:
            for first in range(0, len(part), PIECE):
                yield part[first:first + PIECE]

    def _slice(self, first: int, last: int, step: int) -> Shaped[np.ndarray, " n"]:
        if step != 1:
            return self._gather(np.arange(first, last, step))
        cuts = [part[max(first - start, 0):max(last - start, 0)]
                for part, start in zip(self.parts, self._starts(), strict=True)]
        filled = [cut for cut in cuts if len(cut)] or cuts[:1]
        return filled[0] if len(filled) == 1 else np.concatenate(filled)

    def _gather(self, index: Int64[np.ndarray, "*shape"]) -> Shaped[np.ndarray, "*shape"]:
        if len(self.parts) == 1:
            return self.parts[0][index]
        part = np.searchsorted(self._ends, index, side="right")
        found = np.empty(index.shape, self.dtype)
        for number in np.flatnonzero(np.bincount(part.ravel())):
            here = part == number
            start = self._ends[number] - len(self.parts[number])
            found[here] = self.parts[number][index[here] - start]
        return found


TokenArray: TypeAlias = np.ndarray | JoinedArray
"""An array of one dimension, in memory, or joined from parts in memory and in files."""


def join(parts: Sequence[Part]) -> TokenArray:
    """``parts`` as one array; a single part that is in memory is returned itself."""
    first = parts[0]
    return first if len(parts) == 1 and isinstance(first, np.ndarray) else JoinedArray(parts)

"""One array whose parts are in several files; only the items that are indexed are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, final

import numpy as np
from jaxtyping import Int64, Shaped


@final
class JoinedArray:
    """Several memory-mapped arrays, read as if they were one array of N.

    It supports what token streams need: items, slices, arrays of indices, length and copies. Items are NumPy scalars
    and arrays; a slice within one part is a view, not a copy.

    Args:
        parts: at least one array of one dimension; the dtype is the smallest that holds all of theirs.
    """

    def __init__(self, parts: Sequence[Shaped[np.ndarray, " n"]]) -> None:
        self.parts = tuple(parts)
        self.dtype: np.dtype[Any] = np.result_type(*self.parts)
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
        if index.size and not (-len(self) <= index.min() and index.max() < len(self)):
            raise IndexError(f"places from {index.min()} to {index.max()} in an array of {len(self)}")
        found = self._gather(np.where(index < 0, index + len(self), index))
        return found[()] if index.ndim == 0 else found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Shaped[np.ndarray, " N"]:
        whole = np.concatenate(self.parts)
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def astype(self, dtype: Any) -> Shaped[np.ndarray, " N"]:
        """The whole array, in memory, as that dtype."""
        return np.concatenate([part.astype(dtype) for part in self.parts])

    def copy(self) -> Shaped[np.ndarray, " N"]:
        """The whole array, in memory."""
        return np.concatenate(self.parts)

    def tolist(self) -> list[Any]:
        """All items as a list."""
        items: list[Any] = self.copy().tolist()
        return items

    def max(self) -> Any:
        """The largest item."""
        return max(part.max() for part in self.parts if len(part))

    def sum(self) -> int:
        """The sum of all items, exact."""
        return sum(int(part.sum(dtype=np.int64)) for part in self.parts)

    def _slice(self, first: int, last: int, step: int) -> Shaped[np.ndarray, " n"]:
        if step != 1:
            return self._gather(np.arange(first, last, step))
        starts = self._ends - [len(part) for part in self.parts]
        cuts = [part[max(first - start, 0):max(last - start, 0)]
                for part, start in zip(self.parts, starts.tolist(), strict=True)]
        filled = [cut for cut in cuts if len(cut)] or cuts[:1]
        return filled[0] if len(filled) == 1 else np.concatenate(filled)

    def _gather(self, index: Int64[np.ndarray, "*shape"]) -> Shaped[np.ndarray, "*shape"]:
        part = np.searchsorted(self._ends, index, side="right")
        found = np.empty(index.shape, self.dtype)
        for number in np.flatnonzero(np.bincount(part.ravel())):
            here = part == number
            start = self._ends[number] - len(self.parts[number])
            found[here] = self.parts[number][index[here] - start]
        return found


TokenArray: TypeAlias = np.ndarray | JoinedArray
"""An array of one dimension, in memory, mapped from a file, or joined from several."""


def join(parts: Sequence[Shaped[np.ndarray, " n"]]) -> TokenArray:
    """``parts`` as one array; a single part is returned itself."""
    return parts[0] if len(parts) == 1 else JoinedArray(parts)

"""An array in a file, of which only what is indexed is read, and which a file that shrinks cannot end the process with.

A file that is memory-mapped and becomes shorter, or whose disk fails, ends the process by SIGBUS where it is read, and
no handler can go on from there. So windows are read by ``pread``, which says what went wrong.
"""

from __future__ import annotations

import errno
import os
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from weft.core.errors import DataError

BLOCK = 1 << 14
"""Items that are at most read at once for indices that lie near each other without following one another."""
LEAST_RUN = 16
"""Mean length of runs of consecutive indices from which on each run is read by itself."""
RESTORE = "Copy the folder again, whole, or prepare the data again; a run goes on from its last checkpoint."


class StoredArray:
    """The N items of a file, or a range of them.

    The file stays open, so that one that is put in its place under the same name is not read instead. A slice or an
    array of indices gives a new array in memory; `narrow` gives a range without reading it.

    Args:
        dtype: of the items, which lie in it one after the other.

    Raises:
        DataError: the file cannot be read or is shorter; each way to read the items says so, too.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], length: int) -> None:
        self.dtype = dtype
        self._file, self._first, self._length = _File(path), 0, length
        self._file.require(length * dtype.itemsize)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, places: slice | Int64[np.ndarray, "*shape"]) -> Shaped[np.ndarray, "*shape"]:
        """Items at a slice of step 1 or at indices from 0 to N - 1."""
        if isinstance(places, slice):
            first, last, step = places.indices(len(self))
            assert step == 1, "other steps are read by indices"
            return self._range(first, max(first, last))
        found = np.empty(places.size, self.dtype)
        if places.size:
            self._fill(found, places.reshape(-1))
        return found.reshape(places.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Shaped[np.ndarray, " N"]:
        whole = self._range(0, len(self))
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def narrow(self, first: int, last: int) -> StoredArray:
        """The items from ``first`` up to ``last``, of which none is read."""
        first, last, _ = slice(first, last).indices(len(self))
        found = object.__new__(StoredArray)
        found.dtype, found._file, found._first = self.dtype, self._file, self._first + first
        found._length = max(0, last - first)
        return found

    def _range(self, first: int, last: int) -> Shaped[np.ndarray, " n"]:
        found = np.empty(last - first, self.dtype)
        self._file.read(_bytes(found), self._place(first))
        return found

    def _fill(self, found: Shaped[np.ndarray, " n"], places: Int64[np.ndarray, " n"]) -> None:
        """Read the items at ``places``: windows, which are runs of consecutive places, each into its own place."""
        cuts = np.flatnonzero(places[1:] - places[:-1] != 1) + 1
        if LEAST_RUN * len(cuts) > len(places):
            self._fill_scattered(found, places)
            return
        content, size = _bytes(found), self.dtype.itemsize
        begins = [0, *cuts.tolist()]
        for begin, end, first in zip(begins, [*begins[1:], len(places)], places[begins].tolist(), strict=True):
            self._file.read(content[size * begin:size * end], self._place(first))

    def _fill_scattered(self, found: Shaped[np.ndarray, " n"], places: Int64[np.ndarray, " n"]) -> None:
        """Read the items at ``places``, those of each block of the file together."""
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        cuts = np.flatnonzero(np.diff(ordered // BLOCK)) + 1
        begin = 0
        for end in [*cuts.tolist(), len(ordered)]:
            first = int(ordered[begin])
            found[order[begin:end]] = self._range(first, int(ordered[end - 1]) + 1)[ordered[begin:end] - first]
            begin = end

    def _place(self, first: int) -> int:
        return (self._first + first) * self.dtype.itemsize


class _File:
    """A file that is open as long as it is used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._number = _opened(path)
        except OSError as error:
            raise self._unreadable(error) from None
        weakref.finalize(self, os.close, self._number)

    def __reduce__(self) -> tuple[type[_File], tuple[Path]]:
        return _File, (self._path,)

    def require(self, size: int) -> None:
        """Raise a `DataError` if the file has fewer bytes."""
        found = os.fstat(self._number).st_size
        if found < size:
            raise self._short(found, size)

    def read(self, into: memoryview, place: int) -> None:
        """Fill ``into`` with the bytes from ``place`` on."""
        done, size = 0, len(into)
        while done < size:
            try:
                count = _read_at(self._number, into[done:] if done else into, place + done)
            except OSError as error:
                raise self._unreadable(error) from None
            if not count:
                raise self._short(os.fstat(self._number).st_size, place + size)
            done += count

    def _short(self, found: int, needed: int) -> DataError:
        return DataError(f"the file has {found:,} bytes, and {needed:,} are read: it has become shorter.",
                         where=str(self._path), remedy=RESTORE)

    def _unreadable(self, error: OSError) -> DataError:
        return DataError(f"the file cannot be read ({error.strerror or error}).", where=str(self._path), remedy=RESTORE)


def _opened(path: Path) -> int:
    """The number of the file, open to be read. A system often lets a process have 1,024 open files where it would let
    it have many more on request, and data of some ten billion tokens are as many."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags)
    except OSError as error:
        if error.errno != errno.EMFILE or sys.platform == "win32":
            raise
    import resource  # not on Windows

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return os.open(path, flags)


def _bytes(values: Shaped[np.ndarray, " n"]) -> memoryview:
    return values.view(np.uint8).data


if sys.platform == "win32":
    def _read_at(number: int, into: memoryview, place: int) -> int:
        # A duplicate shares the position in the file, so this is for one thread; Windows has no fork, and no pread.
        os.lseek(number, place, os.SEEK_SET)
        content = os.read(number, len(into))
        into[:len(content)] = content
        return len(content)
else:
    def _read_at(number: int, into: memoryview, place: int) -> int:
        return os.preadv(number, [into], place)

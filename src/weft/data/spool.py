"""Bytes that are written once and then read: in memory, or from a size on in a file without a name."""

from __future__ import annotations

import mmap
import tempfile
from typing import final

from weft.core.errors import DataError

HELD_BYTES = 1 << 26
"""From this size on what is added goes to the disk."""


@final
class Spool:
    """Holds what is added to it, end to end. Up to ``limit`` bytes it stays in memory; more is written into a file in
    the folder for temporary files (``TMPDIR``), which has no name and goes when nothing reads it any more, and is
    mapped from there.

    Args:
        where: what is read, for the message of a full disk.
        limit: bytes that are held in memory.
    """

    def __init__(self, where: str, *, limit: int = HELD_BYTES) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=limit)  # noqa: SIM115, it lives as long as its view
        self._where, self._limit, self.size = where, limit, 0

    def add(self, content: bytes | memoryview) -> None:
        """Append.

        Raises:
            DataError: the folder for temporary files cannot be written to.
        """
        try:
            self._file.write(content)
        except OSError as error:
            raise self._full(error) from None
        self.size += len(content)

    def view(self) -> memoryview:
        """All that was added, once and for all.

        Raises:
            DataError: as `add`.
        """
        try:
            if self.size <= self._limit:
                self._file.seek(0)
                return memoryview(self._file.read())
            self._file.flush()
            return memoryview(mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ))
        except OSError as error:
            raise self._full(error) from None
        finally:
            self._file.close()

    def _full(self, error: OSError) -> DataError:
        return DataError(f"{self.size:,} bytes and more cannot be kept in {tempfile.gettempdir()} "
                         f"({error.strerror or error}).", where=self._where,
                         remedy="Make room there, or name another folder in TMPDIR.")

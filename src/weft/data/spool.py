"""Bytes that are appended and then read: in memory, or beyond a limit in an unnamed temporary file."""

from __future__ import annotations

import mmap
import tempfile
from typing import final

from weft.core.errors import DataError

HELD_BYTES = 1 << 26
"""Bytes from which on the content goes to disk."""


@final
class Spool:
    """Appends bytes. Up to ``limit`` they are kept in memory; beyond it they are written to an unnamed file in the
    folder for temporary files (``TMPDIR``), which is memory-mapped for reading and disappears with its last reader.

    Args:
        where: the data's name, for the message about a full disk.
        limit: bytes that are kept in memory.
    """

    def __init__(self, where: str, *, limit: int = HELD_BYTES) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=limit)  # noqa: SIM115, closed with its last view
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
        """All that was added; nothing may be added afterwards.

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
                         remedy="Free space there, or name another folder in TMPDIR.")

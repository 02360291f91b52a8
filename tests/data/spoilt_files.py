"""What `test_spoilt_parquet` reads in a process of its own, which a file may end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bounded import memory
from weft.core.errors import DataError
from weft.data.records import whole_records

MEBIBYTE = 1 << 20


def rows(path: Path) -> list[Any]:
    """The rows of a file, in bounded memory."""
    with memory(400 * MEBIBYTE):
        return [row for _, _, row in whole_records(path, ".parquet")]


def refused(path: Path) -> None:
    """Print the one line that refuses a file."""
    try:
        rows(path)
    except DataError as error:
        print(error)

"""The error for a checkpoint or file that cannot be written, and how much room there is."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

from safetensors import SafetensorError

from weft.core.errors import CheckpointError, FailedError, WeftError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""No room on the disk, in the user's share of it, or for a file of this size."""


def not_written(error: OSError | SafetensorError, folder: Path, needed: int) -> WeftError:
    """The error for the user.

    Args:
        error: what the system said.
        folder: of the checkpoint.
        needed: bytes that its tensors take.
    """
    kept = "what was saved before is untouched."
    if error_number(error) not in FULL:
        return CheckpointError(f"the checkpoint cannot be written ({error}).", where=str(folder),
                               remedy=f"Choose a folder that can be written to; {kept}")
    return FailedError(f"no room for the checkpoint, which takes {needed:,} bytes; {free_bytes(folder):,} are free "
                       f"there ({error}).", where=str(folder), remedy=f"Make room or choose another folder; {kept}")


def error_number(error: OSError | SafetensorError) -> int | None:
    """The system's number of the error, which safetensors gives only in its text."""
    if isinstance(error, OSError):
        return error.errno
    number = re.search(r"os error (\d+)", str(error))
    return int(number[1]) if number else None


def free_bytes(path: Path) -> int:
    """Bytes free on the disk of ``path``, which need not exist yet."""
    there = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    return shutil.disk_usage(there).free

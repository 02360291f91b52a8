"""The error for a checkpoint that cannot be written, and the free space on a disk."""

from __future__ import annotations

import errno
import re
import shutil
from pathlib import Path

from safetensors import SafetensorError

from weft.core.errors import CheckpointError, FailedError, WeftError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk is full, the user's quota is used up, or the file is too large for the file system."""


def not_written(error: OSError | SafetensorError, folder: Path, needed: int) -> WeftError:
    """The error for the user.

    Args:
        error: of the operating system.
        folder: of the checkpoint.
        needed: bytes of its tensors.
    """
    kept = "earlier checkpoints are unchanged."
    if not is_full(error, folder, needed):
        return CheckpointError(f"the checkpoint cannot be written ({error}).", where=str(folder),
                               remedy=f"Choose a folder that can be written to; {kept}")
    return FailedError(f"there is no space for the checkpoint, which takes {needed:,} bytes; {free_bytes(folder):,} "
                       f"are free there ({error}).", where=str(folder),
                       remedy=f"Free space or choose another folder; {kept}")


def is_full(error: OSError | SafetensorError, folder: Path, needed: int) -> bool:
    """Whether there was no space. NumPy, by which GGUF files are written, says only that less was written than was to
    be, without a number of the operating system's: then the free space tells, once the draft is deleted."""
    number = error_number(error)
    return number in FULL or (number is None and isinstance(error, OSError) and free_bytes(folder) < needed)


def error_number(error: OSError | SafetensorError) -> int | None:
    """The number of the operating system's error, which safetensors gives only in its text."""
    if isinstance(error, OSError):
        return error.errno
    number = re.search(r"os error (\d+)", str(error))
    return int(number[1]) if number else None


def free_bytes(path: Path) -> int:
    """Bytes that are free on the disk of ``path``, which need not exist yet."""
    there = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    return shutil.disk_usage(there).free

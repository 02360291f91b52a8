"""Locks, by which one process at a time writes to a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.core.errors import ConfigError, UserError

LOCK_FILE = ".lock"


@contextmanager
def held(folder: Path, doing: str) -> Iterator[None]:
    """Lock an existing folder for this process, whose number is written into the lock file. The operating system
    releases the lock when the process ends, however it ends. The file stays, unless the block is refused (by a
    `UserError`) before anything else is written into the folder, and the file was not there before.

    Args:
        folder: to be locked.
        doing: what this process does in it, for the error in another process: ``training``.

    Raises:
        ConfigError: another process has the lock, or the path of the lock file is taken by another file.
        OSError: the folder cannot be written to.
    """
    path = folder / LOCK_FILE
    if os.path.lexists(path) and not _is_lock(path):
        raise ConfigError([f"out: {path} is not a lock file of Weft's, and would be overwritten. Choose another "
                           "folder, or move it away."])
    made, handle = _taken(path, doing)
    try:
        yield
    except UserError:
        if made and os.listdir(folder) == [LOCK_FILE]:
            with suppress(OSError):
                path.unlink()
        raise
    finally:
        os.close(handle)


def _taken(path: Path, doing: str) -> tuple[bool, int]:
    """The open and locked file, and whether this process has made it."""
    while True:
        made = not path.exists()
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(handle, path.parent, doing)
            if _stands(path, handle):
                return made, handle
        except BaseException as error:
            if made and isinstance(error, OSError):  # such as a full disk, on which an empty file can still be made
                with suppress(OSError):
                    path.unlink()
            os.close(handle)
            raise
        os.close(handle)  # another process has deleted the file between the two calls


def _stands(path: Path, handle: int) -> bool:
    """Whether the open file is the one at its path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _take(handle: int, folder: Path, doing: str) -> None:
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 32).decode("ascii", "replace").strip()
            raise ConfigError([f"out: another process ({holder or 'of unknown number'}) is {doing} in {folder}. Wait "
                               "for it, or choose another folder."]) from None
    os.ftruncate(handle, 0)
    os.write(handle, f"{os.getpid()}\n".encode("ascii"))


def _is_lock(path: Path) -> bool:
    """Whether a file holds the number of a process, or nothing yet."""
    if path.is_symlink() or not path.is_file():
        return False
    content = path.read_bytes()
    return content == b"" or (content[:-1].isdigit() and content[-1:] == b"\n")

"""Locks, by which one process at a time writes to a folder."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from weft.core.errors import ConfigError, UserError, shortened

LOCK_FILE = ".lock"
FIELDS = ("command", "host", "since")
"""Of the object in the second line of a lock file, whose first line is the number of the process."""
MOST_BYTES = 4_096
"""Of a lock file, and so of what is read of one."""
MOST_COMMAND = 300
"""Characters of the command line that a lock file holds."""


@contextmanager
def held(folder: Path, doing: str) -> Iterator[None]:
    """Lock an existing folder for this process, whose number, command line and host are written into the lock file with
    the time. The operating system releases the lock when the process ends, however it ends, and with it those that it
    forked. The file stays, unless the block is refused (by a
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
            holder = _holder(os.read(handle, MOST_BYTES))
            raise ConfigError([_refusal(folder, doing, *(holder or ("", {})))]) from None
    os.ftruncate(handle, 0)
    facts = {"command": shortened(shlex.join(sys.argv), MOST_COMMAND), "host": socket.gethostname(),
             "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"}
    os.write(handle, f"{os.getpid()}\n{json.dumps(facts)}\n".encode("ascii"))


def _refusal(folder: Path, doing: str, process: str, facts: dict[str, str]) -> str:
    """Who holds the lock, and what can be done: nothing is known of a lock that is just being written, and the number
    of the process alone where the disk is full."""
    told = f"out: another process ({process or 'of unknown number'}) is {doing} in {folder}"
    if facts:
        command = " ".join(facts["command"].split())
        told += f", since {facts['since']} on {facts['host']} ({command})"
    if process and facts.get("host", socket.gethostname()) == socket.gethostname() and not _runs(int(process)):
        return (f"{told}. That process no longer runs: one that it started still holds the lock. End that one, which "
                f"`fuser {folder / LOCK_FILE}` names, or choose another folder.")
    return f"{told}. Wait for it, or choose another folder."


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        return True
    return True


def _is_lock(path: Path) -> bool:
    """Whether a file is what `_take` writes, on a full disk a part of it."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    return content == b"" or _holder(content) is not None


def _holder(content: bytes) -> tuple[str, dict[str, str]] | None:
    """The number of the process that wrote a lock file, and the facts about it; None: no lock file holds this."""
    number, end, rest = content.partition(b"\n")
    if not (number.isdigit() and end):
        return None
    if rest.startswith(b'{"command": "') and not rest.endswith(b"\n"):  # on a full disk a part of it was written
        return number.decode(), {}
    try:
        facts = json.loads(rest or b"{}")
    except (ValueError, RecursionError):
        return None
    known = isinstance(facts, dict) and all(isinstance(each, str) for each in facts.values())
    return (number.decode(), facts) if known and (not facts or sorted(facts) == sorted(FIELDS)) else None

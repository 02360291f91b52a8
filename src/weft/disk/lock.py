"""Locks, by which one process at a time writes to a folder.

The rule of what a command may write into, where it comes back to what it has written: a run's folder, a study's.

Such a folder is the command's own once the file stands there that it writes first. A folder without that file must be
empty, or hold only what a command that was killed before that file may have left: its lock, its drafts, empty folders.
What lies beside the command's own files later is left alone. A folder that is written once and as a whole is the matter
of `weft.disk.ownership`.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from weft.core.errors import ConfigError, UserError, shortened
from weft.disk.atomic import is_workspace
from weft.disk.ownership import enumerated

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


@dataclass(frozen=True)
class WorkFolder:
    """The folder that a command writes into.

    Attributes:
        what: what stands in the folder, for messages: ``run``.
        first: the file that is written first, which proves that the folder is the command's own.
        written: the other files and folders that the command writes.
        before: what the command itself may put there before ``first``.
    """

    what: str
    first: str
    written: tuple[str, ...]
    before: tuple[str, ...] = ()

    def require_room(self, folder: Path) -> None:
        """Refuse a folder that is not the command's own and holds files of others. Raises `ConfigError`: naming them;
        or the folder cannot be read."""
        try:
            self._require_room(folder)
        except OSError as error:
            raise ConfigError([f"out: the folder {folder} cannot be read ({error.strerror}). Choose another "
                               "folder."]) from None

    def _require_room(self, folder: Path) -> None:
        if os.path.lexists(folder / self.first):
            return
        if found := in_the_way(folder, self.written):
            raise ConfigError([f"out: {folder} holds {enumerated(found)}, which a {self.what} would write, and no "
                               f"{self.first} beside it. Choose another folder, or move them away."])
        if found := self._others(folder):
            raise ConfigError([f"out: {folder} holds {enumerated(found)}, and no {self.what}. Choose a new folder, "
                               f"such as {folder / self.what}, or an empty one."])

    def _others(self, folder: Path) -> list[str]:
        within = sorted(folder.iterdir()) if folder.is_dir() else []
        own = (LOCK_FILE, *self.before, *self.written)
        return [path.name for path in within if path.name not in own and not is_workspace(path)]


def in_the_way(folder: Path, names: tuple[str, ...]) -> list[str]:
    """Those of ``names`` that exist in ``folder``; empty folders do not count."""
    return [name for name in names if os.path.lexists(folder / name) and not _is_empty(folder / name)]


def _is_empty(path: Path) -> bool:
    """Whether it is an empty folder, or a link to one; False if it cannot be read."""
    try:
        return path.is_dir() and not any(path.iterdir())
    except PermissionError:
        return False

"""The rule of what a command may write into, where it comes back to what it has written: a run's folder, a study's.

Such a folder is the command's own once the file stands there that it writes first. A folder without that file must be
empty, or hold only what a command that was killed before that file may have left: its lock, its drafts, empty folders.
What lies beside the command's own files later is left alone. A folder that is written once and as a whole is the matter
of `weft.disk.ownership`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import final

from weft.core.errors import ConfigError
from weft.disk.atomic import is_workspace
from weft.disk.lock import LOCK_FILE
from weft.disk.ownership import enumerated


@final
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
        """Refuse a folder that is not the command's own and holds files of others.

        Raises:
            ConfigError: naming them; or the folder cannot be read.
        """
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

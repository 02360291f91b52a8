"""The folder in which Weft keeps files for later processes of the same user."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """The folder: ``$WEFT_CACHE_DIR``, else ``weft`` in ``$XDG_CACHE_HOME``, else ``~/.cache/weft``.

    Raises:
        RuntimeError: the user has no home, and no variable names a folder.
    """
    if os.environ.get("WEFT_CACHE_DIR"):
        return Path(os.environ["WEFT_CACHE_DIR"]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "weft"


def is_own(path: Path) -> bool:
    """Whether a file or folder of the cache is this user's and no link, and nobody else may write to it."""
    stat = path.lstat()
    return not path.is_symlink() and (os.name == "nt" or (stat.st_uid == os.getuid() and not stat.st_mode & 0o022))

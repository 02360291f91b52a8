"""How many threads may be asked for. Python's search for cycles that nothing refers to, which imports do without.

The folder in which Weft keeps files for later processes of the same user.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.core.errors import InputError

EACH = 8
"""Threads for each processor, beyond which more only wait for one another."""
ALWAYS = 64
"""What is never too many, so that a count taken from another machine is accepted."""


def require_threads(count: int, where: str) -> None:
    """Refuse a number of threads that no system would start: PyTorch then ends the process. Raises `InputError`: it is
    not positive, or beyond a multiple of the processors here."""
    processors = os.cpu_count() or 1
    most = max(ALWAYS, EACH * processors)
    if not 1 <= count <= most:
        have = "1 processor" if processors == 1 else f"{processors:,} processors"
        raise InputError(f"{count:,} threads on {have}.", where=where, remedy=f"Give 1 to {most:,}.")


@contextmanager
def uncollected() -> Iterator[None]:
    """For the imports of a process of Weft's own, not of a program that uses the library.

    An import makes hundreds of thousands of objects, all of which stay. Python would search them again and again for
    cycles that nothing refers to, which takes a fourth of the time that PyTorch and Weft need to be imported, and again
    in every full search later. Within the block there is no search; what exists at its end is left out of all later
    ones, and so a process that is forked afterwards does not copy its memory by searching it. Within another such
    block, or where the search is off, it changes nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def cache_root() -> Path:
    """The folder: ``$WEFT_CACHE_DIR``, else ``weft`` in ``$XDG_CACHE_HOME``, else ``~/.cache/weft``. Raises
    `RuntimeError`: the user has no home, and no variable names a folder."""
    if os.environ.get("WEFT_CACHE_DIR"):
        return Path(os.environ["WEFT_CACHE_DIR"]).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "weft"


def is_own(path: Path) -> bool:
    """Whether a file or folder of the cache is this user's and no link, and nobody else may write to it."""
    stat = path.lstat()
    return not path.is_symlink() and (os.name == "nt" or (stat.st_uid == os.getuid() and not stat.st_mode & 0o022))

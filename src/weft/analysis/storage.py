"""Files that are written outside the folders that a user names: where they lie, how large they are, and which of them
Weft may delete.

Weft deletes only what a name and its content prove to be its own: builds of its C code, and reports of errors. What
libraries write at its request (PyTorch's compiler, Triton, the Hub's client) is listed, and left to their own commands.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from weft.core.strict_json import Record
from weft.index.index_cache import NAME, index_folder, read_kept
from weft.ops.native.build import cache_folder, is_build

REPORT = re.compile(rb"weft \S+, Python [^\n]*(\n[^\n]*)?\narguments: \[")
"""How a report of an error begins, which `weft.cli.failures` writes; some builds of Python name theirs in two lines."""


@dataclass(frozen=True)
class StoredFiles(Record):
    """Files and folders of one kind.

    Attributes:
        settings: environment variables that choose the folder, of which the first that is set counts.
        bytes: of all of them together.
        own: those that are proved to be Weft's, which may be deleted.
    """

    what: str
    folder: Path
    settings: tuple[str, ...]
    entries: int
    bytes: int
    own: tuple[Path, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of files: ``names`` is an expression for the names of its entries, and ``proof`` shows that Weft wrote
    one; without it, none is ever deleted."""

    what: str
    folder: Path
    settings: tuple[str, ...]
    names: str = ".*"
    proof: Callable[[Path], bool] = field(default=lambda _: False)

    def found(self) -> StoredFiles:
        """The entries that there are now."""
        paths = [path for path in _within(self.folder) if re.fullmatch(self.names, path.name)]
        return StoredFiles(self.what, self.folder, self.settings, len(paths), sum(map(_bytes, paths)),
                           tuple(path for path in paths if _holds(self.proof, path)))


def kinds() -> tuple[Kind, ...]:
    """All that Weft, or a library that it calls, writes outside the folders of its results."""
    home, temporary, builds = Path.home(), Path(tempfile.gettempdir()), cache_folder()
    hub = _given("HF_HUB_CACHE") or (_given("HF_HOME") or (_given("XDG_CACHE_HOME") or home / ".cache") /
                                     "huggingface") / "hub"
    ours, user = ("WEFT_CACHE_DIR", "XDG_CACHE_HOME"), re.sub(r"[^\w.-]", "_", os.environ.get("USER", "root"))
    return (
        Kind("compiled C code", builds, ours, r"[0-9a-f]{32}", is_build),
        Kind("drafts of compiled C code", builds, ours, r"\.draft-.*"),
        Kind("the index of weft list", index_folder(), ours, NAME, lambda path: read_kept(path) is not None),
        Kind("other files of Weft's cache", builds.parent, ours, rf"(?!({builds.name}|{index_folder().name})$).*"),
        Kind("reports of errors", temporary, ("TMPDIR",), r"weft-error-\w{8}\.txt", is_report),
        Kind("folders of a benchmark's programs", temporary, ("TMPDIR",), r"weft-program-\w{8}"),
        Kind("code by torch.compile", _given("TORCHINDUCTOR_CACHE_DIR") or temporary / f"torchinductor_{user}",
             ("TORCHINDUCTOR_CACHE_DIR", "TMPDIR")),
        Kind("code by Triton", _given("TRITON_CACHE_DIR") or home / ".triton" / "cache", ("TRITON_CACHE_DIR",)),
        Kind("models from the Hub", hub, ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")))


def storage() -> tuple[StoredFiles, ...]:
    """All that is stored outside the folders of results, by kind, also the kinds of which there is nothing."""
    return tuple(kind.found() for kind in kinds())


def clear_storage() -> tuple[Path, ...]:
    """Delete what is proved to be Weft's own; the paths that were deleted. Each is proved once more before. A folder is
    renamed first, so that a part of one is never found under its name."""
    gone: list[Path] = []
    for kind in kinds():
        for path in kind.found().own:
            with suppress(OSError):  # another process has deleted it, or it may not be deleted
                if path.is_dir():
                    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=".draft-"))
                    path.rename(aside / path.name)
                    shutil.rmtree(aside)
                else:
                    path.unlink()
                gone.append(path)
    return tuple(gone)


def is_report(path: Path) -> bool:
    """Whether a file is a report that `weft.cli.failures` wrote for this user. Raises `OSError`: it cannot be read."""
    if path.is_symlink() or not path.is_file() or (os.name != "nt" and path.stat().st_uid != os.getuid()):
        return False
    with path.open("rb") as file:
        return REPORT.match(file.read(4_096)) is not None


def _holds(proof: Callable[[Path], bool], path: Path) -> bool:
    try:
        return proof(path)
    except OSError:
        return False


def _given(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value).expanduser() if value else None


def _within(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # there is none, or it may not be read
        return []


def _bytes(path: Path) -> int:
    """The size of a file, or of all files in a folder, in bytes; links are not followed."""
    try:
        if path.is_dir() and not path.is_symlink():
            return sum(map(_bytes, _within(path)))
        return path.lstat().st_size
    except OSError:
        return 0

"""The rule of what Weft may replace.

Weft replaces a folder only if a manifest proves that Weft wrote all of it, and only with the user's consent
(``replace``); anything else in the way is refused by name. A manifest lists every file of a folder with its size and
SHA-256, so a folder is Weft's if nothing in it is unlisted and nothing listed has changed; missing files do not matter.
A single file has no manifest and is never replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from weft.core.errors import OccupiedError
from weft.disk.manifest import MANIFEST_FILE, FileEntry, read_manifest, sha256_of

SHOWN = 5
"""How many names an error message lists."""

Proof: TypeAlias = Callable[[Path], list[str]]
"""Returns why a folder is not Weft's, in clauses; an empty list if it is."""


def by_manifest(folder: Path) -> list[str]:
    """The proof of a folder with a manifest by `write_manifest`, of any version of Weft."""
    try:
        listed = read_manifest(folder)
    except (OSError, ValueError):
        return _unproven(folder)
    return not_listed(folder, listed, {MANIFEST_FILE})


def not_listed(folder: Path, listed: Mapping[str, FileEntry], beside: set[str]) -> list[str]:
    """Clauses that name the entries of a folder that are neither listed nor named in ``beside``, and the listed files
    that have changed."""
    entries = {name: path for name, path in _entries(folder, listed) if name not in beside or path.is_symlink()}
    unlisted = [name for name in entries if name not in listed]
    changed = [name for name, path in entries.items() if name in listed and (
        path.is_symlink() or not path.is_file() or path.stat().st_size != listed[name].bytes
        or sha256_of(path) != listed[name].sha256)]
    clauses = (("no manifest of Weft's lists", unlisted), ("since Weft wrote them, these have changed:", changed))
    return [f"{what} {enumerated(names)}" for what, names in clauses if names]


def _entries(folder: Path, listed: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """The entries of a folder by relative path. Inner folders with listed files are entered; others are yielded
    themselves."""
    inside = [name.partition("/") for name in listed if "/" in name]
    for path in sorted(folder.iterdir()):
        inner = [rest for first, _, rest in inside if first == path.name]
        if inner and path.is_dir() and not path.is_symlink():
            yield from ((f"{path.name}/{name}", each) for name, each in _entries(path, inner))
        else:
            yield path.name, path


def require_free(path: Path, *, single: bool = False, proof: Proof | None = None, replace: bool = False) -> None:
    """Check that a file or folder may be written.

    Args:
        path: of the file or folder.
        single: whether it is a file.
        proof: of folders that may be replaced; None: only empty ones may.
        replace: whether the user has consented to a replacement.

    Raises:
        OccupiedError: something is in the way, which the message names, or the path cannot be read.
    """
    try:
        _require_free(path, single, proof, replace)
    except OSError as error:
        raise OccupiedError(f"this path cannot be read ({error.strerror or error}), so nothing is written to it.",
                            where=str(path), remedy="Correct its permissions, or choose another place.") from None


def _require_free(path: Path, single: bool, proof: Proof | None, replace: bool) -> None:
    needed, other = ("name", "folder") if single else ("folder", "file")
    if path.is_symlink():
        raise OccupiedError(f"this path is a symbolic link (to {os.readlink(path)}), which is not replaced.",
                            where=str(path), remedy=f"Choose another {needed}, or give the path that it leads to.")
    if not path.exists():
        return
    if path.is_dir() == single:
        raise OccupiedError(f"there is a {other} at this path, and a {'file' if single else 'folder'} is to be "
                            "written.", where=str(path), remedy=f"Choose another {needed}.")
    if single:
        raise OccupiedError("there is a file at this path already, and nothing proves that Weft wrote it, so it is not "
                            "replaced.", where=str(path), remedy="Choose another name, or delete it first.")
    if any(path.iterdir()):
        _require_own(path, proof, replace)
    if path.samefile(Path.cwd()):
        raise OccupiedError("this is the working directory of the command, and it would be replaced by renaming "
                            "another folder.", where=str(path),
                            remedy="Give a folder inside it, or run the command from another folder.")


def require_free_or_same(path: Path, content: bytes) -> None:
    """Check that a file may be written: nothing is at its path, or a file with the same content. Raises
    `OccupiedError`: something else is."""
    if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
        require_free(path, single=True)


def _require_own(folder: Path, proof: Proof | None, replace: bool) -> None:
    problems = _unproven(folder) if proof is None else proof(folder)
    if problems:
        raise OccupiedError(f"this folder holds more than Weft wrote, so it is not replaced: "
                            f"{'; '.join(problems)}.", where=str(folder),
                            remedy="Choose another folder, or move your own files away and delete the rest.")
    if not replace:
        raise OccupiedError("this folder holds what Weft wrote before.", where=str(folder),
                            remedy="Choose another folder, or replace it (--replace, replace=True).")


def enumerated(names: list[str]) -> str:
    """The first `SHOWN` names, and how many more there are."""
    more = len(names) - SHOWN
    return f"{', '.join(names[:SHOWN])}{f' and {more} more' if more > 0 else ''}"


def _unproven(folder: Path) -> list[str]:
    return not_listed(folder, {}, set())

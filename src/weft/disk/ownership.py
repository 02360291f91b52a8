"""What may be written where.

Weft replaces only what a manifest of its own proves that it wrote, and only when it is asked to; anything else in the
way is refused by name. A manifest lists every file of a folder with its size and SHA-256, so a folder is Weft's when
nothing in it is unlisted and nothing listed has changed; what is missing does no harm. A single file has no manifest
and is never replaced.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from weft.core.errors import OccupiedError
from weft.disk.manifest import MANIFEST_FILE, FileEntry, read_manifest, sha256_of

SHOWN = 5
"""Names of things in the way that a message lists."""

Proof: TypeAlias = Callable[[Path], list[str]]
"""What keeps a folder from being Weft's own, in a few clauses; none when all of it is."""


def by_manifest(folder: Path) -> list[str]:
    """The proof of a folder that `write_manifest` has listed, with whatever version of Weft."""
    try:
        listed = read_manifest(folder)
    except (OSError, ValueError):
        return _unproven(folder)
    return not_listed(folder, listed, {MANIFEST_FILE})


def not_listed(folder: Path, listed: Mapping[str, FileEntry], beside: set[str]) -> list[str]:
    """What is in a folder besides the files that are listed, as they are listed, and those named ``beside``."""
    there = {name: path for name, path in _entries(folder, listed) if name not in beside or path.is_symlink()}
    unlisted = [name for name in there if name not in listed]
    changed = [name for name, path in there.items() if name in listed and not _is_as_listed(path, listed[name])]
    clauses = (("no manifest of Weft's lists", unlisted), ("since Weft wrote them, these have changed:", changed))
    return [f"{what} {enumerated(names)}" for what, names in clauses if names]


def _entries(folder: Path, listed: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """What stands in a folder, by its path from there on: of folders that hold something listed what they hold, of
    others the folder."""
    inside = [name.partition("/") for name in listed if "/" in name]
    for path in sorted(folder.iterdir()):
        own = [rest for first, _, rest in inside if first == path.name]
        if own and path.is_dir() and not path.is_symlink():
            yield from ((f"{path.name}/{name}", each) for name, each in _entries(path, own))
        else:
            yield path.name, path


def require_free(path: Path, *, single: bool = False, proof: Proof | None = None, replace: bool = False) -> None:
    """Refuse to write where something is in the way.

    Args:
        path: of the file or folder to be written.
        single: it is a file.
        proof: of the folders that may be replaced; None: only an empty one.
        replace: whether that was asked for.

    Raises:
        OccupiedError: naming what stands there, or telling why that cannot be seen.
    """
    try:
        _require_free(path, single, proof, replace)
    except OSError as error:
        raise OccupiedError(f"what stands here cannot be read ({error.strerror or error}), so nothing is written.",
                            where=str(path), remedy="Correct its permissions, or choose another place.") from None


def _require_free(path: Path, single: bool, proof: Proof | None, replace: bool) -> None:
    wanted, other = ("name", "folder") if single else ("folder", "file")
    if path.is_symlink():
        raise OccupiedError(f"a symbolic link (to {os.readlink(path)}) stands here, and nothing is put in its place.",
                            where=str(path), remedy=f"Choose another {wanted}, or give the path that it leads to.")
    if not path.exists():
        return
    if path.is_dir() == single:
        raise OccupiedError(f"a {other} stands here, where a {'file' if single else 'folder'} is to be written.",
                            where=str(path), remedy=f"Choose another {wanted}.")
    if single:
        raise OccupiedError("a file stands here already, and a single file never shows who wrote it, so it will not be "
                            "replaced.", where=str(path), remedy="Choose another name, or delete it first.")
    if any(path.iterdir()):
        _require_own(path, proof, replace)
    if path.samefile(Path.cwd()):
        raise OccupiedError("the command runs in this folder, which is written beside its place and then renamed.",
                            where=str(path), remedy="Give a folder in it, or run from another one.")


def require_free_or_same(path: Path, content: bytes) -> None:
    """Refuse to write a file where another stands; one of the same content is no loss.

    Raises:
        OccupiedError: naming it.
    """
    if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
        require_free(path, single=True)


def _require_own(folder: Path, proof: Proof | None, replace: bool) -> None:
    problems = _unproven(folder) if proof is None else proof(folder)
    if problems:
        raise OccupiedError(f"what stands here is not just what Weft wrote, and it will not be replaced: "
                            f"{'; '.join(problems)}.", where=str(folder),
                            remedy="Choose another folder, or move away what is yours and delete the rest.")
    if not replace:
        raise OccupiedError("what Weft has written before stands here.", where=str(folder),
                            remedy="Choose another folder, or replace it (--replace, replace=True).")


def in_the_way(folder: Path, names: tuple[str, ...]) -> list[str]:
    """Those of ``names`` under which something stands in ``folder``; an empty folder is nothing."""
    return [name for name in names if os.path.lexists(folder / name) and not is_empty(folder / name)]


def is_empty(path: Path) -> bool:
    """Whether it is a folder, or a link to one, that is seen to hold nothing."""
    try:
        return path.is_dir() and not any(path.iterdir())
    except PermissionError:
        return False


def enumerated(names: list[str]) -> str:
    """The first few, and how many more there are."""
    more = len(names) - SHOWN
    return f"{', '.join(names[:SHOWN])}{f' and {more} more' if more > 0 else ''}"


def _unproven(folder: Path) -> list[str]:
    return not_listed(folder, {}, set())


def _is_as_listed(path: Path, entry: FileEntry) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_size == entry.bytes and sha256_of(path) == entry.sha256

"""Files and folders that are written whole or not at all, whatever moment the process is killed at.

What is being written lies in a room beside its place until it is whole: the folder ``.NAME.PID.draft``, which holds
``weft-draft``, and for moments ``weft-before`` (what is being replaced) or ``weft-discarded`` (what is being deleted).
A room that a process which died has left is known by that name and by holding nothing else; nothing else is deleted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.core.errors import OccupiedError
from weft.disk.manifest import has_manifest
from weft.disk.ownership import Proof, require_free

ROOM = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)\.draft")
DRAFT, BEFORE, DISCARDED = "weft-draft", "weft-before", "weft-discarded"
FORMERLY_BEFORE = ".previous"
"""How earlier versions named a folder that stepped aside: ``.NAME.previous``."""


@contextmanager
def replacing(folder: Path, *, proof: Proof | None = None) -> Iterator[Path]:
    """An empty folder that takes the place of ``folder`` when the block ends without an error.

    The draft is on the same file system, is forced to disk, and is then renamed. A folder that is replaced steps aside
    until the new one stands; if the process dies between these two renames, `standing` still finds it. An error in the
    block leaves ``folder`` as it was.

    Args:
        folder: absent or empty, unless it is to be replaced.
        proof: that what stands there is Weft's and may be replaced; None: nothing is replaced.

    Raises:
        OccupiedError: something else stands there.
    """
    recover(folder)
    require_free(folder, proof=proof, replace=proof is not None)
    if not folder.parent.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sync(folder.parent.parent)
    with _room(folder) as room:
        draft = room / DRAFT
        draft.mkdir()
        yield draft
        _sync_tree(draft)
        require_free(folder, proof=proof, replace=proof is not None)
        _put_in_place(draft, folder, room / BEFORE)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A path to write to; the file becomes ``path``, where nothing may stand, when the block ends without an error.

    Raises:
        OccupiedError: something stands there.
    """
    require_free(path, single=True)
    with _replacing_file(path) as draft:
        yield draft
        require_free(path, single=True)


def write_file(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, replacing what was there at once: for a file of a folder that the caller has proved
    to be Weft's."""
    with _replacing_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def discard(folder: Path) -> None:
    """Delete a folder that the caller has proved to be Weft's. It disappears at once, so that half of it is
    never taken for the whole."""
    with _room(folder) as room:
        os.rename(folder, room / DISCARDED)


def standing(folder: Path) -> Path:
    """``folder``, or the one that stepped aside for a replacement that never came."""
    return folder if os.path.lexists(folder) else _aside(folder) or folder


def standing_in(parent: Path) -> dict[str, Path]:
    """The folders of ``parent`` by name, with those that stepped aside for a replacement that never came."""
    if not parent.is_dir():
        return {}
    names = {path.name for path in parent.glob("[!.]*")}
    names |= {found["name"] for path in parent.iterdir() if (found := ROOM.fullmatch(path.name)) and _is_room(path)}
    names |= {path.name[1 : -len(FORMERLY_BEFORE)] for path in parent.glob(f".*{FORMERLY_BEFORE}")}
    places = {name: standing(parent / name) for name in sorted(names)}
    return {name: place for name, place in places.items() if place.is_dir()}


def tidy(parent: Path) -> None:
    """Put back what stepped aside in ``parent`` for a replacement that never came, and delete what else writers that
    died have left; only for a caller that is the one writer there."""
    for name, place in standing_in(parent).items():
        if place != parent / name:
            os.rename(place, parent / name)
    for path in list(parent.iterdir()) if parent.is_dir() else []:
        if _is_room(path):
            _clear(path)


def recover(folder: Path) -> None:
    """What `tidy` does, for one folder, where others may be writing beside it."""
    rooms = [path for path in _rooms(folder) if not _at_work(path)]
    aside = _aside(folder)
    if not os.path.lexists(folder) and aside is not None and aside.parent in (*rooms, folder.parent):
        os.rename(aside, folder)
    for room in rooms:
        _clear(room)


def _rooms(folder: Path) -> list[Path]:
    """The rooms of all processes for ``folder``."""
    try:
        return [path for path in folder.parent.iterdir()
                if (found := ROOM.fullmatch(path.name)) and found["name"] == folder.name and _is_room(path)]
    except OSError:  # no such folder, or one that cannot be read: no rooms to be found
        return []


def _aside(folder: Path) -> Path | None:
    """What stepped aside for a replacement of ``folder``, of this or an earlier version."""
    found = [path / BEFORE for path in _rooms(folder)]
    formerly = folder.parent / f".{folder.name}{FORMERLY_BEFORE}"
    found += [formerly] if has_manifest(formerly) else []
    return next((path for path in found if path.is_dir()), None)


@contextmanager
def _room(path: Path) -> Iterator[Path]:
    """The room of this process for ``path``, which is empty at first and is gone at the end."""
    room = path.parent / f".{path.name}.{os.getpid()}.draft"
    if os.path.lexists(room):
        if not _is_room(room):
            raise OccupiedError("something stands here, where a draft is to lie.", where=str(room),
                                remedy="Move it away.")
        _clear(room)
    room.mkdir()
    try:
        yield room
    finally:
        _clear(room)


@contextmanager
def _replacing_file(path: Path) -> Iterator[Path]:
    with _room(path) as room:
        draft = room / DRAFT
        yield draft
        _sync(draft)
        os.replace(draft, path)
        _sync(path.parent)


def _is_room(path: Path) -> bool:
    return (ROOM.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()
            and {inner.name for inner in path.iterdir()} <= {DRAFT, BEFORE, DISCARDED})


def _clear(room: Path) -> None:
    """Delete a room and what is in it. What has been replaced is first renamed, so that half of it is never put back;
    what can still be put back stays."""
    found = ROOM.fullmatch(room.name)
    assert found is not None, "it is a room"
    if (room / BEFORE).exists():
        if not os.path.lexists(room.parent / found["name"]):
            return
        shutil.rmtree(room / DISCARDED, ignore_errors=True)
        os.rename(room / BEFORE, room / DISCARDED)
    for inner in (room / DRAFT, room / DISCARDED):
        if inner.is_dir():
            shutil.rmtree(inner, ignore_errors=True)
        else:
            inner.unlink(missing_ok=True)
    room.rmdir()


def _put_in_place(draft: Path, folder: Path, before: Path) -> None:
    if folder.exists():
        os.rename(folder, before)
    try:
        os.rename(draft, folder)
    except BaseException:
        if not folder.exists() and before.exists():
            os.rename(before, folder)
        raise
    _sync(folder.parent)


def _at_work(room: Path) -> bool:
    """Whether another process that lives may be writing in a room."""
    found = ROOM.fullmatch(room.name)
    assert found is not None, "it is a room"
    process = int(found["process"])
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

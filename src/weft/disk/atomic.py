"""Files and folders that are written completely or not at all, even if the process is killed.

Content is written in a workspace beside its destination: the folder ``.NAME.PID.draft``, which holds ``weft-draft``,
and for a moment ``weft-before`` (what is being replaced) or ``weft-discarded`` (what is being deleted). A workspace
that was left by a process that died is recognised by its name and by holding nothing else. Nothing else is ever
deleted.

The error for a checkpoint that cannot be written, and the free space on a disk.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from weft.core.errors import CheckpointError, FailedError, OccupiedError, WeftError
from weft.disk.ownership import Proof, require_free

WORKSPACE = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)\.draft", re.DOTALL)
DRAFT, BEFORE, DISCARDED = "weft-draft", "weft-before", "weft-discarded"


@contextmanager
def replacing(folder: Path, *, proof: Proof | None = None) -> Iterator[Path]:
    """An empty folder that replaces ``folder`` when the block ends without an error.

    The draft is on the same file system, is flushed to disk, and is then renamed. A folder that is replaced is moved
    aside first; if the process dies between the two renames, `standing` returns its path. An error in the block leaves
    ``folder`` unchanged.

    Args:
        folder: absent or empty, unless it is to be replaced.
        proof: shows that an existing folder is Weft's and may be replaced; None: nothing is replaced.

    Raises:
        OccupiedError: something else is at that path.
    """
    recover(folder)
    require_free(folder, proof=proof, replace=proof is not None)
    with made(folder.parent), _workspace(folder) as workspace:
        draft = workspace / DRAFT
        draft.mkdir()
        yield draft
        for path in (*draft.rglob("*"), draft):
            flush(path)
        require_free(folder, proof=proof, replace=proof is not None)
        _put_in_place(draft, folder, workspace / BEFORE)


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """A folder that is made if need be, with those above it. Where the block ends with an error, those that were made
    for it are deleted again as far as they are empty: what is refused leaves nothing."""
    missing = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
    try:
        folder.mkdir(parents=True, exist_ok=True)  # an error where a file stands there
        if missing:
            flush(missing[-1].parent)
        yield
    except BaseException:
        for each in missing:
            with suppress(OSError):  # it was not made, or something else has been put into it
                each.rmdir()
        raise


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A path to write to, which is renamed to ``path`` when the block ends without an error. Raises `OccupiedError`:
    something is at ``path``."""
    require_free(path, single=True)
    with _replacing_file(path) as draft:
        yield draft
        require_free(path, single=True)


def write_file(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in one rename, replacing an existing file; for files of a folder that the caller has
    proved to be Weft's."""
    with _replacing_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def discard(folder: Path) -> None:
    """Delete a folder that the caller has proved to be Weft's. It is renamed first, so that a partly deleted folder is
    never taken for a complete one."""
    with _workspace(folder) as workspace:
        os.rename(folder, workspace / DISCARDED)


def standing(folder: Path) -> Path:
    """``folder``, or, if it is absent, the one that was moved aside for a replacement that was not completed."""
    return folder if os.path.lexists(folder) else _aside(folder) or folder


def standing_in(parent: Path) -> dict[str, Path]:
    """The folders of ``parent`` by name, including those that were moved aside for a replacement that was not
    completed."""
    if not parent.is_dir():
        return {}
    names = {path.name for path in parent.glob("[!.]*")}
    names |= {found["name"] for path in parent.iterdir()
              if (found := WORKSPACE.fullmatch(path.name)) and is_workspace(path)}
    places = {name: standing(parent / name) for name in sorted(names)}
    return {name: place for name, place in places.items() if place.is_dir()}


def tidy(parent: Path) -> None:
    """Restore the folders of ``parent`` that were moved aside for a replacement that was not completed, and delete all
    other remains of processes that died. The caller must be the only writer there."""
    for name, place in standing_in(parent).items():
        if place != parent / name:
            os.rename(place, parent / name)
    for path in list(parent.iterdir()) if parent.is_dir() else []:
        if is_workspace(path):
            _clear(path)


def recover(folder: Path) -> None:
    """`tidy` for one folder, beside which other processes may be writing."""
    workspaces = [path for path in _workspaces(folder) if not _at_work(path)]
    aside = _aside(folder)
    if not os.path.lexists(folder) and aside is not None and aside.parent in workspaces:
        os.rename(aside, folder)
    for workspace in workspaces:
        _clear(workspace)


def _workspaces(folder: Path) -> list[Path]:
    """The workspaces of all processes for ``folder``."""
    try:
        return [path for path in folder.parent.iterdir()
                if (found := WORKSPACE.fullmatch(path.name)) and found["name"] == folder.name and is_workspace(path)]
    except OSError:  # no such folder, or one that cannot be read: there are no workspaces
        return []


def _aside(folder: Path) -> Path | None:
    """The folder that was moved aside for a replacement of ``folder``; None: there is none."""
    found = (path / BEFORE for path in _workspaces(folder))
    return next((path for path in found if path.is_dir()), None)


@contextmanager
def _workspace(path: Path) -> Iterator[Path]:
    """The workspace of this process for ``path``, empty at first and deleted at the end."""
    workspace = path.parent / f".{path.name}.{os.getpid()}.draft"
    if os.path.lexists(workspace):
        if not is_workspace(workspace):
            raise OccupiedError("something is at this path, which is needed for a draft.", where=str(workspace),
                                remedy="Move it away.")
        _clear(workspace)
    workspace.mkdir()
    try:
        yield workspace
    except OSError as error:
        # That a disk is full is noticed where the file is open. What is no error of the system has only its own text.
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise
    finally:
        _clear(workspace)


@contextmanager
def _replacing_file(path: Path) -> Iterator[Path]:
    with _workspace(path) as workspace:
        draft = workspace / DRAFT
        yield draft
        flush(draft)
        os.replace(draft, path)
        flush(path.parent)


def is_workspace(path: Path) -> bool:
    """Whether a folder is one in which a replacement is prepared, or was by a process that died."""
    return (WORKSPACE.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()
            and {inner.name for inner in path.iterdir()} <= {DRAFT, BEFORE, DISCARDED})


def _clear(workspace: Path) -> None:
    """Delete a workspace with its content, unless it holds a folder that can still be restored. A folder that has been
    replaced is renamed first, so that it is never restored when it is partly deleted."""
    found = WORKSPACE.fullmatch(workspace.name)
    assert found is not None, "it is a workspace"
    if (workspace / BEFORE).exists():
        if not os.path.lexists(workspace.parent / found["name"]):
            return
        shutil.rmtree(workspace / DISCARDED, ignore_errors=True)
        os.rename(workspace / BEFORE, workspace / DISCARDED)
    for inner in (workspace / DRAFT, workspace / DISCARDED):
        if inner.is_dir():
            shutil.rmtree(inner, ignore_errors=True)
        else:
            inner.unlink(missing_ok=True)
    workspace.rmdir()


def _put_in_place(draft: Path, folder: Path, before: Path) -> None:
    if folder.exists():
        os.rename(folder, before)
    try:
        os.rename(draft, folder)
    except BaseException:
        if not folder.exists() and before.exists():
            os.rename(before, folder)
        raise
    flush(folder.parent)


def _at_work(workspace: Path) -> bool:
    """Whether another running process may be writing in a workspace."""
    found = WORKSPACE.fullmatch(workspace.name)
    assert found is not None, "it is a workspace"
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


@contextmanager
def text_in(folder: Path, text: str) -> Iterator[Path]:
    """A file of ``folder`` that holds ``text``, with a name that no other process uses; deleted at the end. Linked to a
    name, it stands there complete, or not at all where something stands there."""
    handle, name = tempfile.mkstemp(prefix=".draft-", dir=folder)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        flush(Path(name))
        yield Path(name)
    finally:
        os.unlink(name)


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The disk is full, the user's quota is used up, or the file is too large for the file system."""


def not_written(error: OSError | SafetensorError, folder: Path, needed: int) -> WeftError:
    """The error for the user.

    Args:
        needed: bytes of its tensors.
    """
    kept = "earlier checkpoints are unchanged."
    if not is_full(error, folder, needed):
        return CheckpointError(f"the checkpoint cannot be written ({error}).", where=str(folder),
                               remedy=f"Choose a folder that can be written to; {kept}")
    return FailedError(f"there is no space for the checkpoint, which takes {needed:,} bytes; {free_bytes(folder):,} "
                       f"are free there ({error}).", where=str(folder),
                       remedy=f"Free space or choose another folder; {kept}")


def is_full(error: OSError | SafetensorError, folder: Path, needed: int) -> bool:
    """Whether there was no space. NumPy, by which GGUF files are written, says only that less was written than was to
    be, without a number of the operating system's: then the free space tells, once the draft is deleted."""
    number = error_number(error)
    return number in FULL or (number is None and isinstance(error, OSError) and free_bytes(folder) < needed)


def error_number(error: OSError | SafetensorError) -> int | None:
    """The number of the operating system's error, which safetensors gives only in its text."""
    if isinstance(error, OSError):
        return error.errno
    number = re.search(r"os error (\d+)", str(error))
    return int(number[1]) if number else None


def free_bytes(path: Path) -> int:
    """Bytes that are free on the disk of ``path``, which need not exist yet."""
    there = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    return shutil.disk_usage(there).free

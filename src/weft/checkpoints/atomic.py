"""Files and folders that are written whole or not at all, whatever moment the process is killed at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DRAFT_SUFFIX = ".draft"
PREVIOUS_SUFFIX = ".previous"


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """An empty folder beside ``folder`` that takes its place when the block ends without an error.

    The draft is on the same file system, is forced to disk, and is then renamed. A folder that is replaced steps aside
    under another name until the new one stands; if the process dies between these two renames, `standing` still finds
    it. An error in the block leaves ``folder`` as it was.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.parent / f".{folder.name}.{os.getpid()}{DRAFT_SUFFIX}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        _sync_tree(draft)
        _put_in_place(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def standing(folder: Path) -> Path:
    """``folder``, or the one that stepped aside for a replacement that never came."""
    previous = _previous(folder)
    return previous if not folder.exists() and previous.exists() else folder


def tidy(parent: Path) -> None:
    """Put back what stepped aside in ``parent`` for a replacement that never came, and delete what else writers that
    died have left; only for a caller that is the one writer there."""
    for previous in parent.glob(f".*{PREVIOUS_SUFFIX}"):
        folder = parent / previous.name.removeprefix(".").removesuffix(PREVIOUS_SUFFIX)
        if folder.exists():
            shutil.rmtree(previous, ignore_errors=True)
        else:
            os.rename(previous, folder)
    for draft in parent.glob(f".*{DRAFT_SUFFIX}"):
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink()


def write_file(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, replacing what was there at once."""
    draft = path.parent / f".{path.name}.{os.getpid()}{DRAFT_SUFFIX}"
    draft.write_text(text, encoding="utf-8")
    _sync(draft)
    os.replace(draft, path)
    _sync(path.parent)


def _put_in_place(draft: Path, folder: Path) -> None:
    previous = _previous(folder)
    if folder.exists():
        shutil.rmtree(previous, ignore_errors=True)
        os.rename(folder, previous)
    os.rename(draft, folder)
    _sync(folder.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _previous(folder: Path) -> Path:
    return folder.parent / f".{folder.name}{PREVIOUS_SUFFIX}"


def _sync_tree(folder: Path) -> None:
    for path in folder.iterdir():
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

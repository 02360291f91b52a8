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
    if not folder.parent.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sync(folder.parent.parent)
    draft = _draft(folder)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        _sync_tree(draft)
        _put_in_place(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to; the file takes the place of ``path`` when the block ends without an error."""
    draft = _draft(path)
    try:
        yield draft
        _sync(draft)
        os.replace(draft, path)
        _sync(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_file(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, replacing what was there at once."""
    with replacing_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def discard(folder: Path) -> None:
    """Delete a folder. It disappears at once, so that nobody ever takes half of it for the whole."""
    draft = _draft(folder)
    os.rename(folder, draft)
    shutil.rmtree(draft)


def standing(folder: Path) -> Path:
    """``folder``, or the one that stepped aside for a replacement that never came."""
    previous = _previous(folder)
    return previous if not folder.exists() and previous.exists() else folder


def standing_in(parent: Path) -> list[Path]:
    """The folders of ``parent`` in the order of their names, with those that stepped aside for a replacement that
    never came."""
    names = {path.name for path in parent.glob("[!.]*") if path.is_dir()}
    names |= {path.name.removeprefix(".").removesuffix(PREVIOUS_SUFFIX) for path in parent.glob(f".*{PREVIOUS_SUFFIX}")}
    return [standing(parent / name) for name in sorted(names)]


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


def _put_in_place(draft: Path, folder: Path) -> None:
    previous = _previous(folder)
    if folder.exists():
        shutil.rmtree(previous, ignore_errors=True)
        os.rename(folder, previous)
    try:
        os.rename(draft, folder)
    except BaseException:
        if not folder.exists() and previous.exists():
            os.rename(previous, folder)
        raise
    _sync(folder.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _draft(path: Path) -> Path:
    return path.parent / f".{path.name}.{os.getpid()}{DRAFT_SUFFIX}"


def _previous(folder: Path) -> Path:
    return folder.parent / f".{folder.name}{PREVIOUS_SUFFIX}"


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

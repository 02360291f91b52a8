"""Where data lie: a file, a folder, a pattern such as ``books/*.txt``, or a list of them."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from weft.core.errors import DataError
from weft.data.compression import content_suffix

Where: TypeAlias = str | Path | Sequence[str]
"""The path of a file or folder, a pattern, or a list of both."""


class Files(NamedTuple):
    """The files of a place.

    Attributes:
        paths: of the files, in order.
        base: the folder that the names of documents are relative to.
        name: of the whole, for reports.
    """

    paths: tuple[Path, ...]
    base: Path
    name: str

    def named(self) -> list[tuple[Path, str]]:
        """Each file with its name: its path from `base`."""
        return [(path, as_text(Path(os.path.relpath(path, self.base)).as_posix())) for path in self.paths]


def as_text(name: str) -> str:
    """The name of a file as text. Names are bytes; those that are not UTF-8 are written as ``\\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def described(where: Where) -> str:
    """A place in words, for messages."""
    return str(where) if isinstance(where, str | Path) else ", ".join(where)


def files_of(where: Where, suffixes: Collection[str]) -> Files:
    """The files of a place: of a folder those whose names end in one of ``suffixes``, in the order of their paths,
    hidden ones left out; of a pattern (``*``, ``?``, ``[abc]``, and ``**`` for any folders) those that it matches, in
    that order; of a list those of each item, in its order, none twice. What exists under a name is no pattern. Raises
    `DataError`: nothing is there, or something that is neither a file nor a folder."""
    if not isinstance(where, str | Path):
        return _of_list(where, suffixes)
    path = Path(where)
    if not path.exists() and glob.has_magic(str(where)):
        return _matching(str(where), suffixes)
    name = path.resolve().name if path.is_dir() else path.name
    return Files(tuple(_of_path(path, suffixes)), path if path.is_dir() else path.parent, as_text(name))


def _of_list(items: Sequence[str], suffixes: Collection[str]) -> Files:
    found = [files_of(item, suffixes) for item in items]
    paths = tuple(dict.fromkeys(path for each in found for path in each.paths))
    base = Path(os.path.commonpath([each.base.absolute() for each in found]))
    return Files(paths, base, ", ".join(each.name for each in found))


def _matching(pattern: str, suffixes: Collection[str]) -> Files:
    matches = sorted(glob.glob(pattern, recursive=True))
    paths = tuple(dict.fromkeys(path for match in matches for path in _of_path(Path(match), suffixes)))
    if not paths:
        raise DataError("no file matches the pattern.", where=pattern, remedy="Check it, and the folder that it is "
                        "relative to.")
    fixed = Path(*(part for part, plain in _plain_parts(Path(pattern)) if plain))
    return Files(paths, fixed, as_text(Path(pattern).name))


def _plain_parts(pattern: Path) -> Iterator[tuple[str, bool]]:
    """The parts of a pattern, each with whether it and all before it are free of wildcards."""
    plain = True
    for part in pattern.parts:
        plain = plain and not glob.has_magic(part)
        yield part, plain


def _of_path(path: Path, suffixes: Collection[str]) -> Sequence[Path]:
    if path.is_dir():
        names = (file.relative_to(path).as_posix() for file in _below(path) if content_suffix(file) in suffixes)
        return [path / name for name in sorted(names)]
    if not path.exists():
        raise DataError("no such file or folder.", where=str(path), remedy="Check the path.")
    if path.is_fifo():
        raise DataError("a pipe, which can be read only once, while a text is read again by every run of a comparison "
                        "and whenever a run resumes.", where=str(path), remedy="Write it to a file first.")
    if not path.is_file():
        raise DataError("neither a file nor a folder.", where=str(path), remedy="Give the path of a text file.")
    return [path]


def _below(folder: Path) -> Iterator[Path]:
    """Files below ``folder`` that are not hidden. Links to folders are not followed, since they may form a cycle."""
    for place, folders, files in os.walk(folder, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place) / name for name in files if not name.startswith("."))


def _unreadable(error: OSError) -> None:
    raise DataError(f"the folder cannot be read ({error.strerror or error}).", where=str(error.filename),
                    remedy="Check its permissions.") from None

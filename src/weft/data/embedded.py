"""The default corpus: the source of the standard library of the Python that runs Weft."""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from weft.core.errors import DataError
from weft.data.corpus import Corpus
from weft.data.document import Document

NAME = "python-standard-library"
# Tests are a third of the files and mostly tables; build data differ between builds of the same version, and with
# them the hash would.
LEFT_OUT_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib2to3", "lib-dynload"}
)
LEFT_OUT_PREFIXES = ("_sysconfigdata", "_sysconfig_vars", "config-")


def embedded_corpus(*, max_bytes: int | None = None, seed: int = 0, folder: str | Path | None = None) -> Corpus:
    """The standard library's ``*.py`` files, one document each, in the order of their paths.

    Installed packages, tests, build data, empty files and files that are not UTF-8 are left out. The text is on every
    machine that runs Weft, and is the same for the same version of Python, which ``sha256`` shows.

    Args:
        max_bytes: limit, see `Corpus.limited`.
        seed: of the choice of documents under a limit.
        folder: of another library to read instead of the running Python's, without a version.

    Raises:
        DataError: this Python comes without its library's source.
    """
    root = Path(folder or sysconfig.get_path("stdlib"))
    names = sorted(path.relative_to(root).as_posix() for path in _sources(root))
    found = ((name, _text(root / name)) for name in names)
    documents = tuple(Document(name, text) for name, text in found if text)
    if not documents:
        raise DataError("this Python comes without the source of its standard library.", where=str(root),
                        remedy="Give a text file or folder of your own with --data.")
    version = f"Python {platform.python_version()}" if folder is None else ""
    corpus = Corpus(NAME, documents, version=version)
    return corpus if max_bytes is None else corpus.limited(max_bytes, seed=seed)


def _sources(root: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT_FOLDERS and _belongs(name)]
        yield from (Path(place) / name for name in files if name.endswith(".py") and _belongs(name))


def _belongs(name: str) -> bool:
    return not name.startswith(LEFT_OUT_PREFIXES)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return ""

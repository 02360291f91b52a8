"""Text from a file or a folder, read as it is: UTF-8, nothing normalised."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from weft.core.errors import DataError
from weft.data.corpus import Corpus, Document

PROSE = frozenset({".txt", ".text", ".md", ".rst", ".tex", ".html"})
RECORDS = frozenset({".xml", ".json", ".jsonl", ".csv", ".tsv", ".yaml", ".yml", ".toml", ".ini", ".cfg"})
SOURCE = frozenset(
    {".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".java", ".js", ".ts", ".rb", ".sh"}
)
TEXT_SUFFIXES = PROSE | RECORDS | SOURCE
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def read_text(path: str | Path, *, suffixes: Collection[str] = TEXT_SUFFIXES) -> Corpus:
    """The corpus of a text file, or of a folder: one document per file, in the order of their paths.

    In a folder, files count whose name ends in one of ``suffixes`` and which are not empty; hidden files and folders
    do not. A file that is named itself may end in anything.

    Raises:
        DataError: a path that is missing or cannot be read, a file that is empty, binary or not UTF-8, a folder
            without text.
    """
    path = Path(path)
    if path.is_dir():
        return Corpus(path.resolve().name, _folder(path, suffixes))
    if not path.exists():
        raise DataError("no such file or folder.", where=str(path), remedy="Check the path.")
    if not path.is_file():
        raise DataError("neither a file nor a folder.", where=str(path), remedy="Give the path of a text file.")
    text = read_document(path)
    if not text:
        raise DataError("the file is empty.", where=str(path), remedy="Give a file that has text.")
    return Corpus(path.name, (Document(path.name, text),))


def read_document(path: Path) -> str:
    """The text of one file.

    Raises:
        DataError: a file that cannot be read, is binary or is not UTF-8.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"the file cannot be read ({error.strerror or error}).", where=str(path), remedy="Check its permissions."
        ) from None
    return _decode(content, path)


def _decode(content: bytes, path: Path) -> str:
    if content.startswith(UTF16_MARKS):
        raise _not_utf8(path, "the file begins with the mark of UTF-16, not of UTF-8.", "utf-16")
    if (place := content.find(b"\0")) >= 0:
        raise DataError(
            f"the file is binary (a zero byte at offset {place}).",
            where=str(path),
            remedy="Give a text file; leave this one out of the folder.",
        )
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"the file is not UTF-8: byte 0x{content[error.start]:02x} at offset {error.start} ({error.reason})."
        raise _not_utf8(path, what, "latin-1") from None


def _not_utf8(path: Path, what: str, guess: str) -> DataError:
    remedy = f"Convert it, for instance with: iconv -f {guess} -t utf-8 '{path}' > converted.txt"
    return DataError(what, where=str(path), remedy=remedy)


def _folder(folder: Path, suffixes: Collection[str]) -> tuple[Document, ...]:
    names = (file.relative_to(folder).as_posix() for file in _files(folder) if file.suffix.lower() in suffixes)
    read = (Document(name, read_document(folder / name)) for name in sorted(names))
    documents = tuple(document for document in read if document.text)
    if not documents:
        raise DataError(
            f"no text file in the folder that is not empty (looked for names ending in {' '.join(sorted(suffixes))}).",
            where=str(folder),
            remedy="Give a folder with text, or name the file itself.",
        )
    return documents


def _files(folder: Path) -> Iterator[Path]:
    """Files below ``folder``, but for hidden ones; links to folders are not followed, since they may form a ring."""
    for place, folders, files in os.walk(folder, onerror=_unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place) / name for name in files if not name.startswith("."))


def _unreadable(error: OSError) -> None:
    raise DataError(
        f"the folder cannot be read ({error.strerror or error}).",
        where=str(error.filename),
        remedy="Check its permissions.",
    ) from None

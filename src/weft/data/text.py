"""Text from a file or a folder: UTF-8, unchanged except that a byte order mark at its beginning is removed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from weft.core.errors import DataError
from weft.data.compression import Content, content_suffix, mark_bytes, read_content
from weft.data.corpus import Corpus
from weft.data.division import Division, divide
from weft.data.document import Document
from weft.data.document_buffer import Documents, SpanTable, TextRange, columns_of
from weft.data.places import Files, Where, described, files_of
from weft.data.records import RECORD_SUFFIXES, TEXT_FIELD, Fields, TextRecord, records, text_of
from weft.data.spooled import Spool
from weft.data.utf8 import decoded, find_byte

PROSE = frozenset({".txt", ".text", ".md", ".rst", ".tex", ".html"})
TABLES = frozenset({".xml", ".json", ".csv", ".tsv", ".yaml", ".yml", ".toml", ".ini", ".cfg"})
SOURCE = frozenset(
    {".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".java", ".js", ".ts", ".rb", ".sh"}
)
TEXT_SUFFIXES = PROSE | TABLES | SOURCE | RECORD_SUFFIXES
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def read_text(path: Where, *, suffixes: Collection[str] = TEXT_SUFFIXES, text_field: str = TEXT_FIELD,
              prompt_field: str | None = None, documents: Division = "file") -> Corpus:
    """The corpus of a file, of a folder, of a pattern, or of a list of them, see `weft.data.places.files_of`.

    A text file is one document unless ``documents`` divides it; each record of a JSON Lines (``.jsonl``, ``.ndjson``)
    or Parquet file is one. Any of them may be compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``). Of a folder, the files
    are read whose names, without the suffix of the compression, end in one of ``suffixes``, except hidden ones and
    those in hidden folders. A file that is given itself may have any suffix. Empty texts are no documents.

    Args:
        path: the file, folder, pattern or list.
        suffixes: of the files of a folder that are read.
        text_field: the field of a record that holds its text.
        prompt_field: the field of a record whose text precedes that, is read and does not count in a loss.
        documents: how text files are divided.

    Raises:
        DataError: the path is missing or cannot be read; a file is damaged, empty, binary or not UTF-8; a record lacks
            the text; a folder has no text; or an option applies to none of the files.
        MissingExtra: Parquet or ``.zst``, and the package that reads it is not installed.
    """
    files = files_of(path, suffixes)
    _require_used(path, files, text_field, prompt_field, documents)
    fields = ({} if prompt_field is None else {"prompt_field": prompt_field}) | {"text_field": text_field}
    found = Documents([_documents(file, name, fields, documents) for file, name in files.named()])
    if not found:
        raise nothing(path, suffixes)
    return Corpus(files.name, found, whole=prompt_field is not None)


def source_files(path: Where, suffixes: Collection[str] = TEXT_SUFFIXES) -> list[Path]:
    """The files that `read_text` reads, in order. Raises `DataError`: as `weft.data.places.files_of`."""
    return list(files_of(path, suffixes).paths)


def read_like(path: Where, *, text_field: str, prompt_field: str | None, documents: Division) -> Corpus:
    """Read a text with the settings of another one: they apply where they can, and are ignored where they cannot.
    Raises `DataError`: as `read_text`, whose arguments these are."""
    records = {content_suffix(file) in RECORD_SUFFIXES for file in source_files(path)}
    if records == {False}:
        return read_text(path, documents=documents)
    return read_text(path, text_field=text_field, prompt_field=prompt_field,
                     documents=documents if False in records else "file")


def read_document(path: Path) -> memoryview:
    """The text of one file, compressed or not, in UTF-8 and without a byte order mark. Raises `DataError`: the file
    cannot be read, or is damaged, binary or not UTF-8."""
    content = read_content(path)
    _require_text(content, path)
    return memoryview(content)[mark_bytes(content):]


def _require_text(content: Content, path: Path) -> None:
    if content[:2] in UTF16_MARKS:
        raise _not_utf8(path, "the file begins with the mark of UTF-16, not of UTF-8.", "utf-16")
    if (place := find_byte(memoryview(content), 0, 0)) >= 0:
        raise DataError(f"the file is binary (a zero byte at offset {place}).", where=str(path),
                        remedy="Give a text file; leave this one out of the folder.")
    try:
        for _ in decoded(memoryview(content)):
            pass
    except UnicodeDecodeError as error:
        what = f"the file is not UTF-8: byte 0x{content[error.start]:02x} at offset {error.start} ({error.reason})."
        raise _not_utf8(path, what, "latin-1") from None


def _not_utf8(path: Path, what: str, guess: str) -> DataError:
    remedy = f"Convert it, for instance with: iconv -f {guess} -t utf-8 '{path}' > converted.txt"
    return DataError(what, where=str(path), remedy=remedy)


def _documents(file: Path, name: str, fields: Fields, how: Division) -> Sequence[Document]:
    suffix = content_suffix(file)
    if suffix in RECORD_SUFFIXES:
        return record_table(name, str(file), records(file, suffix, fields), fields)
    return divide(Document(name, text), how) if (text := read_document(file)) else ()


def record_table(name: str, where: str, found: Iterable[TextRecord], fields: Fields,
                 max_bytes: int | None = None) -> SpanTable:
    """A document for each record: the texts of its fields, of which only the last is scored.

    Args:
        name: of the file; documents are named after it and their number.
        where: the data's name, for messages.
        found: the records, each with the values of ``fields``.
        fields: that are read, by the setting that names each.
        max_bytes: no record is read once there are so many bytes of text; None: all are.

    Raises:
        DataError: a field holds no text.
    """
    spool = Spool(where)

    def spans() -> Iterator[TextRange]:
        for record in found:
            if max_bytes is not None and spool.size >= max_bytes:
                return
            texts = [text_of(value, setting, field, record.where).encode()
                     for value, (setting, field) in zip(record.values, fields.items(), strict=True)]
            first = spool.size
            for text in texts:
                spool.add(text)
            if spool.size > first:
                yield TextRange(first, spool.size, record.number, sum(map(len, texts[:-1])))

    columns = columns_of(spans())
    return SpanTable(name, spool.view(), columns)


def _require_used(path: Where, files: Files, field: str, prompt: str | None, how: Division) -> None:
    """Refuse an option that applies to none of the files."""
    holds_records = {content_suffix(file) in RECORD_SUFFIXES for file in files.paths}
    given = {"text_field": None if field == TEXT_FIELD else field, "prompt_field": prompt}
    for setting, value in given.items():
        if value is not None and holds_records == {False}:
            raise DataError(f"{setting} is {value!r}, while no file here holds records.", where=described(path),
                            remedy="Leave it out: it is for JSONL and Parquet.")
    if how != "file" and holds_records == {True}:
        raise DataError(f"documents is {how!r}, while every file here holds records, each of which is a document.",
                        where=described(path), remedy="Leave it out: it is for text files.")


def nothing(path: Where, suffixes: Collection[str]) -> DataError:
    """The error for a path without any text."""
    if not isinstance(path, str | Path) or not Path(path).is_dir():
        what = "the file is empty." if isinstance(path, str | Path) and Path(path).is_file() else "no file has text."
        return DataError(what, where=described(path), remedy="Give a file that has text.")
    listed = " ".join(sorted(suffixes))
    return DataError(f"no text file in the folder that is not empty (looked for names ending in {listed}).",
                     where=str(path), remedy="Give a folder with text, or name the file itself.")

"""The content of files that may be compressed: whole, or an error that names the problem."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import mmap
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from weft.core.errors import DataError, MissingExtra

Content: TypeAlias = bytes | mmap.mmap
MAPPED_BYTES = 1 << 28
"""Size in bytes from which on a file is memory-mapped instead of read."""


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in .gz, .bz2, .xz or .zst.

    Raises:
        DataError: the file cannot be read, or its compressed content is truncated or damaged.
        MissingExtra: a .zst file, and the package ``zstandard`` is not installed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    expand = COMPRESSIONS.get(path.suffix.lower())
    return content if expand is None else _expanded(path, content, expand)


def read_content(path: Path) -> Content:
    """The content of a file as `read_bytes` returns it, except that a large uncompressed file is memory-mapped. Its
    parts are read when they are used, so the file must not change in the meantime.

    Raises:
        DataError: as `read_bytes`.
        MissingExtra: as `read_bytes`.
    """
    try:
        if path.suffix.lower() in COMPRESSIONS or path.stat().st_size < MAPPED_BYTES:
            return read_bytes(path)
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise _unreadable(path, error) from None


RELEASED = 1 << 26
"""Bytes of a mapped file after which the memory of what was read is released."""


def release(content: Content | memoryview) -> None:
    """Release the memory of what was read of a mapped file; it is read from the file again when it is used again. Other
    content is not affected."""
    held = content.obj if isinstance(content, memoryview) else content
    if isinstance(held, mmap.mmap) and sys.platform != "win32":
        held.madvise(mmap.MADV_DONTNEED)


def mark_bytes(content: Content) -> int:
    """The length of the UTF-8 byte order mark at the beginning, which is not part of the text; 0 without one."""
    return len(codecs.BOM_UTF8) if content[:len(codecs.BOM_UTF8)] == codecs.BOM_UTF8 else 0


def content_suffix(path: Path) -> str:
    """The suffix that names a file's format, in lower case and without that of its compression: ``.jsonl`` for
    ``a.jsonl.gz``."""
    suffix = path.suffix.lower()
    return path.with_suffix("").suffix.lower() if suffix in COMPRESSIONS else suffix


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"the file cannot be read ({error.strerror or error}).", where=str(path),
                     remedy="Check its permissions.")


def _expanded(path: Path, content: bytes, expand: Callable[[bytes], bytes]) -> bytes:
    try:
        return expand(content)
    except EOFError:
        what = f"the compressed file is truncated: its content breaks off after {len(content):,} bytes."
        raise DataError(what, where=str(path), remedy="Copy or download it again, whole.") from None
    except (OSError, ValueError, lzma.LZMAError, zlib.error) as error:
        what = f"the file is not {path.suffix} data, or is damaged ({error})."
        remedy = "Copy or download it again, or name it after what it holds."
        raise DataError(what, where=str(path), remedy=remedy) from None


def _bz2(content: bytes) -> bytes:
    # bz2.decompress raises the same ValueError for truncated and for damaged data; a decompressor has ``eof``.
    return _streams(content, bz2.BZ2Decompressor)


def _xz(content: bytes) -> bytes:
    return _streams(content, lzma.LZMADecompressor)


def _streams(content: bytes, make: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]) -> bytes:
    """One or more compressed streams, one after the other.

    Raises:
        EOFError: the last one is truncated.
    """
    pieces: list[bytes] = []
    while True:
        one = make()
        pieces.append(one.decompress(content))
        if not one.eof:
            raise EOFError
        content = one.unused_data
        if not content.strip(b"\0"):  # xz allows padding with zeros
            return b"".join(pieces)


def _zst(content: bytes) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("zstandard", "data", "reading .zst files") from None
    pieces: list[bytes] = []
    while content:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            pieces.append(frame.decompress(content))
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None
        if not frame.eof:
            raise EOFError
        content = frame.unused_data
    return b"".join(pieces)


COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress, ".bz2": _bz2, ".xz": _xz, ".zst": _zst}
"""How to expand a file, by the end of its name."""

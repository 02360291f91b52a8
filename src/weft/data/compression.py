"""The content of files that may be compressed: whole, or an error that names the problem.

Records of JSON files that hold one array of objects, each with the line on which it begins.
"""

from __future__ import annotations

import bz2
import codecs
import json
import lzma
import mmap
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from weft.core.errors import DataError, MissingExtra
from weft.disk.documents import DECODER, Unreadable, require_regular, require_shallow, too_deep

Content: TypeAlias = bytes | mmap.mmap
Expand: TypeAlias = Callable[[bytes, int], bytes]
MAPPED_BYTES = 1 << 28
"""Size in bytes from which on a file is memory-mapped instead of read."""
MOST_TIMES = 100
"""How many times its own size a compressed file may unpack to. Texts reach 3 to 20; formats allow more than 1,000."""
ALWAYS_EXPANDED = 1 << 26
"""Bytes that any compressed file may unpack to, however small it is."""
XZ_MEMORY = 1 << 28
"""Bytes that unpacking .xz may take beside its output: the file says how many. The highest preset takes 65 MiB."""
GZIP = 31
"""zlib's name for the gzip format with the largest window."""
STREAM_SLICE = 1 << 9
"""Bytes that a decompressor of one of several streams is given first."""
ZSTD_SLICE = 1 << 10
"""Bytes of a .zst file unpacked at a time: its library has no limit, and four bytes may be a block of 128 KiB."""


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in .gz, .bz2, .xz or .zst.

    Raises:
        DataError: the file cannot be read, or its compressed content is truncated or damaged.
        MissingExtra: a .zst file, and the package ``zstandard`` is not installed.
    """
    try:
        require_regular(path)
        content = path.read_bytes()
    except (OSError, Unreadable) as error:
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
        if path.suffix.lower() in COMPRESSIONS or require_regular(path) < MAPPED_BYTES:
            return read_bytes(path)
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, Unreadable) as error:
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


def _unreadable(path: Path, error: OSError | Unreadable) -> DataError:
    if isinstance(error, Unreadable):
        return DataError(f"the file cannot be read ({error}).", where=str(path), remedy="Give a regular file.")
    return DataError(f"the file cannot be read ({error.strerror or error}).", where=str(path),
                     remedy=f"Check its {'name' if isinstance(error, FileNotFoundError) else 'permissions'}.")


def _expanded(path: Path, content: bytes, expand: Expand) -> bytes:
    most = max(ALWAYS_EXPANDED, MOST_TIMES * len(content))
    try:
        return expand(content, most)
    except _TooLarge:
        what = (f"the file of {len(content):,} bytes unpacks to more than {most:,}; what is read has at most "
                f"{MOST_TIMES} times its compressed size.")
        remedy = "If that is right, unpack it and give the unpacked file."
        raise DataError(what, where=str(path), remedy=remedy) from None
    except EOFError:
        what = f"the compressed file is truncated: its content breaks off after {len(content):,} bytes."
        raise DataError(what, where=str(path), remedy="Copy or download it again, whole.") from None
    except (OSError, ValueError, lzma.LZMAError, zlib.error) as error:
        what = f"the file is not {path.suffix} data, or is damaged ({error})."
        remedy = "Copy or download it again, or name it after what it holds."
        raise DataError(what, where=str(path), remedy=remedy) from None


class _TooLarge(Exception):
    """More is unpacked than may be."""


def _streams(make: Callable[[], Any], content: bytes, most: int) -> bytes:
    """One or more compressed streams, one after the other, in time linear in their bytes: a decompressor hands back a
    copy of what it was given beyond its stream, so it is given little at first, and then twice as much each time.

    Raises:
        EOFError: the last one is truncated.
        _TooLarge: they hold more than ``most`` bytes.
    """
    pieces: list[bytes] = []
    given, place = memoryview(content), 0
    while True:
        one, size = make(), STREAM_SLICE
        while not one.eof:
            if place == len(given):
                raise EOFError
            taken = given[place:place + size]
            pieces.append(one.decompress(taken, most + 1))
            most -= len(pieces[-1])
            if most < 0:
                raise _TooLarge
            place, size = place + len(taken) - len(one.unused_data), 2 * size
        if place == len(given) or (given[place] == 0 and not bytes(given[place:]).strip(b"\0")):
            return b"".join(pieces)  # gzip and xz allow padding with zeros


def _zst(content: bytes, most: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("zstandard", "data", "reading .zst files") from None
    pieces: list[bytes] = []
    place, frame = 0, None
    while place < len(content):
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        taken = content[place:place + ZSTD_SLICE]
        try:
            pieces.append(frame.decompress(taken))
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None
        most -= len(pieces[-1])
        if most < 0:
            raise _TooLarge
        place += len(taken) - len(frame.unused_data)
        frame = None if frame.eof else frame
    if frame is not None:
        raise EOFError
    return b"".join(pieces)


COMPRESSIONS: Mapping[str, Expand] = {
    ".gz": partial(_streams, lambda: zlib.decompressobj(GZIP)), ".bz2": partial(_streams, bz2.BZ2Decompressor),
    ".xz": partial(_streams, lambda: lzma.LZMADecompressor(memlimit=XZ_MEMORY)), ".zst": _zst}
"""How to expand a file to at most so many bytes, by the end of its name."""


ARRAY_SUFFIXES = frozenset({".json"})
SPACE = " \t\r\n"


def array_records(path: Path) -> Iterator[tuple[int, Any]]:
    """The items of the array in a file, in order, each with the number of its first line, from 1.

    The file's text is held whole; its items are decoded one at a time.

    Raises:
        DataError: the file is not UTF-8, is not one JSON array, or is truncated; ``where`` has the line.
    """
    text = _text(path)
    place, line = _after_space(text, 0), 1
    if text[place:place + 1] != "[":
        raise _wrong(path, text, place, "the file is not a JSON array", "Write [{...}, {...}], or one object a line in "
                     "a file whose name ends in .jsonl.")
    counted, place = 0, _after_space(text, place + 1)
    while text[place:place + 1] != "]":
        line += text.count("\n", counted, place)
        counted = place
        try:
            item, after = DECODER.raw_decode(text, place)
            require_shallow(item)
        except json.JSONDecodeError as error:
            raise _wrong(path, text, error.pos, f"not JSON ({error})", "Correct that place.") from None
        except (Unreadable, RecursionError) as error:
            reason = error if isinstance(error, Unreadable) else too_deep()
            raise _wrong(path, text, place, str(reason), "Correct that place.") from None
        yield line, item
        place = _after_space(text, after)
        follows = text[place:place + 1]
        if follows not in (",", "]") or not follows:
            raise _wrong(path, text, place, "the array does not go on or end here", "Copy the file again, whole, or "
                         "put a comma between its items.")
        if follows == ",":
            place = _after_space(text, place + 1)
    rest = _after_space(text, place + 1)
    if rest < len(text):
        raise _wrong(path, text, rest, "text follows the array", "Remove it.")


def _text(path: Path) -> str:
    content = read_content(path)
    mark = mark_bytes(content)
    try:
        return str(memoryview(content)[mark:], "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"the file is not UTF-8: byte 0x{content[mark + error.start]:02x} at offset "
                        f"{mark + error.start}.", where=str(path), remedy="Convert it to UTF-8.") from None


def _after_space(text: str, place: int) -> int:
    while place < len(text) and text[place] in SPACE:
        place += 1
    return place


def _wrong(path: Path, text: str, place: int, what: str, remedy: str) -> DataError:
    return DataError(f"{what}.", where=f"{path}, line {text.count(chr(10), 0, place) + 1}", remedy=remedy)

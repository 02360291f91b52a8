"""Compressed files of many members: their content, and how much work it is to read them."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from weft.data import compression

LINE = b"a line of text\n"
FORMATS: list[Any] = [(compress, compression.COMPRESSIONS[end]) for compress, end in (
    (gzip.compress, ".gz"), (bz2.compress, ".bz2"), (lzma.compress, ".xz"))]


@pytest.mark.parametrize(("packed", "expand"), FORMATS, ids=["gz", "bz2", "xz"])
def test_members_of_any_size_follow_one_another(packed: Callable[[bytes], bytes],
                                                expand: Callable[[bytes, int], bytes]) -> None:
    noise = b"".join(zlib.compress(bytes([i % 256]) * i) for i in range(400))
    content = packed(LINE) + packed(noise) + packed(b"") + packed(LINE * 9_999)
    whole = LINE + noise + LINE * 9_999
    assert expand(content, len(whole)) == whole
    assert expand(content + bytes(9_999), len(whole)) == whole, "padding"
    with pytest.raises(compression._TooLarge):
        expand(content, len(whole) - 1)
    with pytest.raises(EOFError):
        expand(content[:-9], len(whole))
    with pytest.raises((OSError, zlib.error, lzma.LZMAError)):
        expand(content + bytes(9) + b"notes", len(whole))


def test_the_bytes_that_are_handed_to_decompressors_grow_with_those_of_the_file() -> None:
    """A member of 35 bytes is given 512 of them, and hands the others back; a long one is given twice its bytes at
    most. Given all that was left, 2,000 members would be given 1,000 times the file."""
    handed: list[int] = []

    class Counting:
        def __init__(self) -> None:
            self.own = zlib.decompressobj(compression.GZIP)

        @property
        def eof(self) -> bool:
            return self.own.eof

        @property
        def unused_data(self) -> bytes:
            return self.own.unused_data

        def decompress(self, data: bytes | memoryview, most: int, /) -> bytes:
            handed.append(len(data))
            return self.own.decompress(data, most)

    content = gzip.compress(LINE) * 2_000 + gzip.compress(LINE * 99_999)
    assert compression._streams(Counting, content, 10**8) == LINE * 101_999
    assert sum(handed) <= 512 * 2_000 + 2 * len(content)

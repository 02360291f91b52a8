"""Functions on text in UTF-8 that count, search and decode it in parts, so that it is not in memory twice."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64, UInt8

from weft.data.compression import RELEASED, release

PART = 1 << 20
"""Bytes that are processed at a time."""

LINE_END = ord("\n")
CONTINUED, MARK = 0b1100_0000, 0b1000_0000
"""A byte whose upper two bits are ``10`` continues a character."""


def parts_of(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The content in parts, each with its offset. The memory of mapped files is released after each part."""
    for first in range(0, len(content), PART):
        if first and first % RELEASED == 0:
            release(content)
        yield first, content[first:first + PART]


def decoded(content: memoryview, *, size: int = PART) -> Iterator[str]:
    """The text in parts of at most ``size`` bytes; none is empty. Raises `UnicodeDecodeError`: the content is not
    UTF-8; ``start`` is relative to the whole content."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for first in range(0, len(content), size):
        if first and first % RELEASED == 0:
            release(content)
        waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(bytes(content[first:first + size]), final=first + size >= len(content))
        except UnicodeDecodeError as error:
            shift = first - waiting
            raise UnicodeDecodeError(error.encoding, error.object, error.start + shift, error.end + shift,
                                     error.reason) from None
        if text:
            yield text


def character_count(content: memoryview) -> int:
    """The number of characters."""
    return sum(len(_starts(part)) for _, part in parts_of(content))


def character_at(content: memoryview, index: int) -> int:
    """The byte at which the character with that index begins; the content's length for the index after the last."""
    for first, part in parts_of(content):
        starts = _starts(part)
        if index < len(starts):
            return first + int(starts[index])
        index -= len(starts)
    return len(content)


def character_start(content: memoryview, place: int) -> int:
    """The first byte of the character to which byte ``place`` belongs."""
    place = min(place, len(content))
    while 0 < place < len(content) and content[place] & CONTINUED == MARK:
        place -= 1
    return place


def find_byte(content: memoryview, byte: int, first: int) -> int:
    """The offset of the first such byte from ``first`` on; -1: there is none."""
    for start, part in parts_of(content[first:]):
        found = np.flatnonzero(_bytes(part) == byte)
        if len(found):
            return first + start + int(found[0])
    return -1


def _starts(content: memoryview) -> Int64[np.ndarray, " characters"]:
    """The bytes at which characters begin."""
    return np.flatnonzero(_bytes(content) & CONTINUED != MARK)


def _bytes(content: memoryview) -> UInt8[np.ndarray, " n"]:
    return np.frombuffer(content, dtype=np.uint8)

"""What the pages of a Parquet file unpack to, read from their headers before any is unpacked.

The package pyarrow gives the headers of columns, whose sizes nothing holds to the truth; that of a page is what its
memory is taken by. A header is a structure of Thrift's compact protocol: PageHeader 1 type, 2 uncompressed_page_size,
3 compressed_page_size, and one of 5, 7 and 8 (data, dictionary, data of version 2), whose field 1 is num_values; the
encoding is field 2 of 5 and field 4 of 8 (Apache Parquet, ``parquet.thrift``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

Content: TypeAlias = Any
"""Bytes that can be indexed, mapped or not."""

UNPACKED, PACKED, NUM_VALUES, DICTIONARY = 2, 3, 1, 7
ENCODING = {5: 2, 8: 4}
"""Where the head of a data page has its encoding."""
BY_DICTIONARY = (2, 8)
"""Encodings whose values are places in the dictionary."""
TRUE, FALSE, BYTE, DOUBLE, TEXT, STRUCT = 1, 2, 3, 7, 8, 12
WHOLE = (4, 5, 6)
"""Types of the compact protocol."""
MOST_NESTED = 8
"""Structures inside one another; a page's header has three."""


class Page(NamedTuple):
    """A page, as its header says.

    Attributes:
        unpacked: bytes once it is unpacked.
        values: how many it holds.
        coded: how many of these are places in a dictionary.
        dictionary: where its packed content begins and ends, if it is a dictionary.
    """

    unpacked: int
    values: int
    coded: int
    dictionary: tuple[int, int] | None


def pages(content: Content, start: int, end: int) -> Iterator[Page]:
    """The pages of a column from ``start`` to ``end`` of a file. A header that is damaged ends them: whoever reads the
    pages says what is wrong with it."""
    while start < end:
        try:
            header, start = _struct(content, start, 0)
            page = _page(header, start)
            after = start + header[PACKED]
        except (IndexError, KeyError, TypeError, ValueError):
            return
        yield page
        if after < start:
            return
        start = after


def _page(header: dict[int, Any], start: int) -> Page:
    unpacked = int(header[UNPACKED])
    if DICTIONARY in header:
        return Page(unpacked, int(header[DICTIONARY][NUM_VALUES]), 0, (start, start + int(header[PACKED])))
    kind = next((each for each in ENCODING if each in header), None)
    if kind is None:  # a page of an index
        return Page(unpacked, 0, 0, None)
    values = int(header[kind][NUM_VALUES])
    return Page(unpacked, values, values if header[kind].get(ENCODING[kind]) in BY_DICTIONARY else 0, None)


def longest_text(dictionary: bytes) -> int:
    """Bytes of the longest text of an unpacked dictionary: each follows its length in four bytes, little-endian."""
    place, longest = 0, 0
    while place + 4 <= len(dictionary):
        size = int.from_bytes(dictionary[place:place + 4], "little")
        place, longest = place + 4 + size, max(longest, size)
    return min(longest, len(dictionary))


def _struct(content: Content, place: int, depth: int) -> tuple[dict[int, Any], int]:
    """The fields of a structure that are numbers or structures, and the place after it."""
    if depth > MOST_NESTED:
        raise ValueError("nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while content[place]:
        kind, more = content[place] & 0x0F, content[place] >> 4
        place += 1
        if more:
            number += more
        else:
            number, place = _whole(content, place)
        fields[number], place = _value(content, place, kind, depth)
    return fields, place + 1


def _value(content: Content, place: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (TRUE, FALSE):
        return None, place
    if kind in WHOLE:
        return _whole(content, place)
    if kind in (BYTE, DOUBLE):
        return None, place + (1 if kind == BYTE else 8)
    if kind == TEXT:
        size, place = _varint(content, place)
        return None, place + size
    if kind == STRUCT:
        return _struct(content, place, depth + 1)
    raise ValueError(f"type {kind}, which no header of a page has")


def _whole(content: Content, place: int) -> tuple[int, int]:
    """A number whose lowest bit is its sign."""
    value, place = _varint(content, place)
    return value >> 1 ^ -(value & 1), place


def _varint(content: Content, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number of more than ten bytes")

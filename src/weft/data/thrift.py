"""Structures of Thrift's compact protocol, of which some fields are wanted and the others passed over.

Whoever reads the same bytes with another library must find the same numbers in them. So what two readers may take
differently is refused: a wanted field that comes twice or has another type, and a number beyond its type's range. Maps
and types that Apache Parquet does not have are refused too. (Thrift, ``doc/specs/thrift-compact-protocol.md``.)
"""

from __future__ import annotations

from typing import Any, TypeAlias

Content: TypeAlias = Any
"""Bytes that can be indexed, mapped or not."""
Shape: TypeAlias = Any
"""What a wanted field holds: `I32` or `I64`, a dictionary (a structure, of which these fields are wanted), or a list
with one shape (a list of such)."""

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, TEXT, LIST, SET, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12
"""Types of the compact protocol."""
MOST_NUMBER = (1 << 15) - 1
"""The largest number of a field."""
MOST_NESTED = 8
"""Structures and lists inside one another; the description of a file has seven."""


class Malformed(Exception):
    """The bytes are no structure of Thrift, or none that is read."""


def read_struct(content: Content, place: int, wanted: dict[int, Shape], depth: int = 0) -> tuple[dict[int, Any], int]:
    """The wanted fields of the structure at ``place``, by number, and the place after it.

    Raises:
        Malformed: the bytes are no such structure, or what two readers may take differently.
        IndexError: they end before it.
    """
    if depth > MOST_NESTED:
        raise Malformed("structures nested too deeply")
    fields: dict[int, Any] = {}
    number = 0
    while head := content[place]:
        kind, more = head & 0x0F, head >> 4
        place += 1
        if more:
            number += more
        else:
            number, place = _whole(content, place)
        if not 0 < number <= MOST_NUMBER:
            raise Malformed(f"a field of number {number}")
        shape = wanted.get(number)
        if shape is None:
            place = _passed(content, place, kind, depth)
        elif number in fields:
            raise Malformed(f"the field {number} comes twice")
        else:
            fields[number], place = _value(content, place, kind, shape, depth)
    return fields, place + 1


def _value(content: Content, place: int, kind: int, shape: Shape, depth: int) -> tuple[Any, int]:
    if kind != (shape if isinstance(shape, int) else STRUCT if isinstance(shape, dict) else LIST):
        raise Malformed(f"a field of type {kind}")
    if kind == STRUCT:
        return read_struct(content, place, shape, depth + 1)
    if kind == LIST:
        count, inner, place = _list(content, place)
        items = []
        for _ in range(count):
            item, place = _value(content, place, inner, shape[0], depth + 1)
            items.append(item)
        return items, place
    found, place = _whole(content, place)
    if found.bit_length() > (31 if kind == I32 else 63):
        raise Malformed(f"the number {found}, which its type does not hold")
    return found, place


def _passed(content: Content, place: int, kind: int, depth: int) -> int:
    """The place after a field that is not wanted."""
    if kind in (I16, I32, I64):
        return _after_varint(content, place)
    if kind in (TRUE, FALSE):  # a field's type is its value
        return place
    if kind in (BYTE, DOUBLE):
        return place + (1 if kind == BYTE else 8)
    if kind == TEXT:
        size, place = _varint(content, place)
        return place + size
    if depth > MOST_NESTED:
        raise Malformed("structures nested too deeply")
    if kind == STRUCT:
        while head := content[place]:
            place = _passed(content, place + 1 if head >> 4 else _after_varint(content, place + 1), head & 0x0F,
                            depth + 1)
        return place + 1
    if kind not in (LIST, SET):
        raise Malformed(f"a field of type {kind}")
    count, inner, place = _list(content, place)
    if inner in (TRUE, FALSE, BYTE, DOUBLE):
        return place + count * (8 if inner == DOUBLE else 1)
    for _ in range(count):
        place = _passed(content, place, inner, depth + 1)
    return place


def _after_varint(content: Content, place: int) -> int:
    while content[place] >= 0x80:
        place += 1
    return place + 1


def _list(content: Content, place: int) -> tuple[int, int, int]:
    """How many items a list has, their type, and the place of the first."""
    head = content[place]
    if head >> 4 == 15:
        count, place = _varint(content, place + 1)
        return count, head & 0x0F, place
    return head >> 4, head & 0x0F, place + 1


def _whole(content: Content, place: int) -> tuple[int, int]:
    """A number whose lowest bit is its sign."""
    value, place = _varint(content, place)
    return value >> 1 ^ -(value & 1), place


def _varint(content: Content, place: int) -> tuple[int, int]:
    value = content[place]
    place += 1
    if value < 0x80:
        return value, place
    value &= 0x7F
    for shift in range(7, 70, 7):
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise Malformed("a number of more than ten bytes")

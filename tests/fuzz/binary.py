"""Changes to files of a binary format that keep its structure: protocol buffers, Thrift, archives, pickles, GGUF."""

from __future__ import annotations

import io
import pickletools
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from hypothesis import strategies as st

from fuzz.mutations import TEXTS, bytes_changed

Spoil: TypeAlias = Callable[[Any, bytes], bytes]
WHOLE = [0, 1, 2, 3, 127, 255, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63,
         2**64 - 1]
"""Numbers that a field may hold."""


def varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def read_varint(content: bytes, place: int) -> tuple[int, int]:
    """A number, and the place after it."""
    value = shift = 0
    while True:
        byte = content[place]
        value, place, shift = value | (byte & 0x7F) << shift, place + 1, shift + 7
        if byte < 0x80:
            return value, place


def protobuf_changed(draw: Any, content: bytes) -> bytes:
    """A protocol buffer with some fields, of messages within messages too, changed, repeated, swapped or left out."""
    fields = list(_fields(content))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(fields) - 1)) if len(fields) else 0
        how = draw(st.sampled_from(["value", "value", "value", "drop", "repeat", "number"]))
        if not fields or how == "drop":
            del fields[at:at + draw(st.sampled_from([1, 1, 50]))]
        elif how == "repeat":
            fields[at:at] = [fields[at]] * draw(st.sampled_from([1, 3, 500]))
        elif how == "number":
            fields[at] = (draw(st.sampled_from([0, 1, 2, 3, 4, 5, 99])), *fields[at][1:])
        else:
            fields[at] = (*fields[at][:2], _field_changed(draw, *fields[at][1:]))
    return b"".join(_field(*each) for each in fields)


def _field_changed(draw: Any, wire: int, value: Any) -> Any:
    if wire == 0:
        return draw(st.sampled_from(WHOLE))
    if wire == 2 and len(value) > 1 and draw(st.booleans()):
        try:
            return protobuf_changed(draw, value)
        except (IndexError, ValueError):
            pass
    if wire == 2:
        text = st.sampled_from(TEXTS).map(lambda each: each.encode("utf-8", "surrogatepass"))
        return draw(st.one_of(text, st.binary(max_size=12), st.just(value * 3)))
    return draw(st.sampled_from([b"\0", b"\xff", b"\x7f"])) * len(value)


def _fields(message: bytes) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and value of each field."""
    place = 0
    while place < len(message):
        key, place = read_varint(message, place)
        wire = key & 7
        if wire == 0:
            value, place = read_varint(message, place)
            yield key >> 3, wire, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"wire type {wire}")
        size, place = read_varint(message, place) if wire == 2 else ({1: 8, 5: 4}[wire], place)
        if place + size > len(message):
            raise ValueError("beyond the end")
        yield key >> 3, wire, message[place:place + size]
        place += size


def _field(number: int, wire: int, value: Any) -> bytes:
    head = varint(number << 3 | wire)
    return head + (varint(value) if wire == 0 else varint(len(value)) + value if wire == 2 else value)


def parquet_changed(draw: Any, content: bytes) -> bytes:
    """A Parquet file whose description at its end, or the head of a page, has other numbers, types or texts."""
    if len(content) < 12 or draw(st.integers(0, 9)) == 0:
        return bytes_changed(draw, content)
    size = int.from_bytes(content[-8:-4], "little")
    start = len(content) - 8 - size
    if draw(st.integers(0, 3)):
        footer = thrift_changed(draw, content[start:-8])
        said = len(footer) if draw(st.integers(0, 20)) else draw(st.sampled_from(WHOLE)) % 2**32
        return content[:start] + footer + struct.pack("<I", said) + content[-4:]
    head = thrift_changed(draw, content[4:64])
    return content[:4] + head[:60].ljust(60, b"\0") + content[64:]


def thrift_changed(draw: Any, content: bytes) -> bytes:
    """A structure of Thrift's compact protocol with some numbers, texts, lengths or types changed."""
    places = list(_thrift_places(content))
    changed = bytearray(content)
    count = draw(st.integers(1, 3))
    chosen = sorted((draw(st.sampled_from(places)) for _ in range(count)), reverse=True) if places else []
    for kind, start, end in ((each[2], each[0], each[1]) for each in chosen):
        if kind == "number":
            changed[start:end] = varint(draw(st.sampled_from([*WHOLE, *(2 * n for n in range(1, 12))])) % 2**64)
        elif kind == "text":
            text = draw(st.sampled_from(TEXTS)).encode("utf-8", "surrogatepass")[:300]
            changed[start:end] = varint(len(text)) + text
        else:
            changed[start] = changed[start] & 0xF0 | draw(st.integers(0, 13))
    return bytes(changed)


def _thrift_places(content: bytes) -> Iterator[tuple[int, int, str]]:
    """Where the numbers, texts and heads of fields of a structure begin and end."""
    try:
        yield from _struct(content, 0, [])
    except (IndexError, ValueError):
        return


def _struct(content: bytes, place: int, end: list[int]) -> Iterator[tuple[int, int, str]]:
    while content[place]:
        kind, head = content[place] & 0x0F, place
        if content[place] >> 4 == 0:
            _, place = read_varint(content, place + 1)
        else:
            place += 1
        yield head, head + 1, "head"
        yield from _value(content, place, kind, end)
        place = end.pop()
    end.append(place + 1)


def _value(content: bytes, place: int, kind: int, end: list[int]) -> Iterator[tuple[int, int, str]]:
    if kind in (1, 2):
        end.append(place)
    elif kind == 3:
        end.append(place + 1)
    elif kind in (4, 5, 6):
        _, after = read_varint(content, place)
        yield place, after, "number"
        end.append(after)
    elif kind == 8:
        size, after = read_varint(content, place)
        yield place, after + size, "text"
        end.append(after + size)
    elif kind == 9:
        size, inner, head = content[place] >> 4, content[place] & 0x0F, place
        place += 1
        if size == 15:
            size, place = read_varint(content, place)
        yield head, head + 1, "head"
        for _ in range(size):
            yield from _value(content, place, inner, end)
            place = end.pop()
        end.append(place)
    elif kind == 12:
        yield from _struct(content, place, end)
    else:
        raise ValueError(f"type {kind}")


def archive_changed(draw: Any, content: bytes) -> bytes:
    """A zip archive with a member changed, left out, doubled, renamed or packed, or with sizes that are not its own."""
    how = draw(st.sampled_from(["member", "member", "member", "drop", "copy", "rename", "pack", "sizes", "sizes",
                                "bytes"]))
    if how == "bytes" or not zipfile.is_zipfile(io.BytesIO(content)):
        return bytes_changed(draw, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    at = draw(st.integers(0, len(members) - 1))
    name, held = members[at]
    if how == "member":
        spoil = pickle_changed if name.endswith(".pkl") and draw(st.booleans()) else bytes_changed
        members[at] = name, spoil(draw, held)
    elif how == "drop":
        del members[at]
    elif how == "copy":
        members.append(members[at])
    elif how == "rename":
        members[at] = draw(st.sampled_from([name + "x", "../" + name, "", "a" * 300, name.upper(), "/" + name])), held
    elif how == "pack":
        members[at] = name, held + bytes(draw(st.sampled_from([0, 10, 1 << 20, 1 << 26])))
    made = io.BytesIO()
    packed = zipfile.ZIP_DEFLATED if how == "pack" else zipfile.ZIP_STORED
    with zipfile.ZipFile(made, "w", packed) as archive, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Duplicate name")  # two members of one name are what is wanted
        for each, inside in members:
            archive.writestr(zipfile.ZipInfo(each or "x"), inside, packed)
    return _sizes_changed(draw, made.getvalue()) if how == "sizes" else made.getvalue()


def _sizes_changed(draw: Any, content: bytes) -> bytes:
    """An archive whose central directory says other sizes, methods or places."""
    changed = bytearray(content)
    places = [place for place in range(len(content)) if content.startswith(b"PK\x01\x02", place)]
    for place in draw(st.lists(st.sampled_from(places), min_size=1, max_size=2)) if places else []:
        field, width = draw(st.sampled_from([(20, 4), (24, 4), (42, 4), (10, 2), (8, 2), (28, 2), (30, 2)]))
        value = draw(st.sampled_from(WHOLE)) % 2**(8 * width)
        changed[place + field:place + field + width] = value.to_bytes(width, "little")
    return bytes(changed)


def pickle_changed(draw: Any, content: bytes) -> bytes:
    """A pickle with some of its operations repeated, left out, swapped, or given other numbers and names."""
    try:
        places = [place for _, _, place in pickletools.genops(content) if place is not None]
    except ValueError:
        return bytes_changed(draw, content)
    pieces = [content[first:last] for first, last in zip(places, [*places[1:], len(content)], strict=True)]
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(1, max(1, len(pieces) - 2)))
        how = draw(st.sampled_from(["drop", "repeat", "swap", "number", "number", "name", "insert"]))
        if at >= len(pieces):
            break
        if how == "drop":
            del pieces[at]
        elif how == "repeat":
            pieces[at:at] = [pieces[at]] * draw(st.sampled_from([1, 100, 5_000]))
        elif how == "swap":
            other = draw(st.integers(1, len(pieces) - 1))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        elif how == "number":
            numbers = [place for place, each in enumerate(pieces) if each[:1] in (b"K", b"M", b"J", b"\x8a")] or [at]
            value = draw(st.sampled_from([*WHOLE, -1, -2**31, -2**63]))
            pieces[draw(st.sampled_from(numbers))] = b"\x8a\x0a" + value.to_bytes(10, "little", signed=True)
        elif how == "name":
            names = [place for place, each in enumerate(pieces) if each[:1] == b"c"] or [at]
            pieces[draw(st.sampled_from(names))] = draw(st.sampled_from([
                b"cos\nsystem\n", b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_parameter\n",
                b"ccollections\nOrderedDict\n", b"ctorch\nSize\n", b"ctorch\nempty\n", b"c\n\n"]))
        else:
            pieces.insert(at, draw(st.sampled_from([b"N", b"]", b"}", b"(", b")", b"0", b"2", b"R", b"b", b"s", b"u",
                                                    b"Q", b"\x85", b"\x86", b"h\xff", b"X\xff\xff\xff\xff"])))
    return b"".join(pieces)


def gguf_changed(draw: Any, content: bytes) -> bytes:
    """A GGUF file with one to three numbers of eight or four bytes in its head changed, or with other bytes."""
    if draw(st.integers(0, 3)) == 0:
        return bytes_changed(draw, content)
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        width = draw(st.sampled_from([4, 8]))
        at = draw(st.sampled_from([4, 8, 16, 24])) if draw(st.booleans()) else draw(
            st.integers(4, min(len(changed), 3_000) - width))
        changed[at:at + width] = (draw(st.sampled_from(WHOLE)) % 2**(8 * width)).to_bytes(width, "little")
    return bytes(changed)

"""Elements of HTML and SVG from Python values: all but `Markup` is escaped, so data cannot become markup.

Fields of numbers as small pictures inside a drawing: one point for each number, whose opacity is its value.
"""

from __future__ import annotations

import base64
import html
import struct
import unicodedata
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeAlias


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


Child: TypeAlias = "str | Iterable[str]"
Attributes: TypeAlias = "Mapping[str, str | float | bool | None]"

VOID = frozenset({"meta", "link", "br", "wbr", "line", "path", "circle", "rect", "col", "image", "use"})
DIRECTIONS = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
INVISIBLE = frozenset("\u200b\u2060\ufeff\u00ad\u2028\u2029")


def tag(name: str, attributes: Attributes | None = None, *children: Child) -> Markup:
    """One element; plain strings among the children are escaped, attributes that are None or False omitted."""
    opening = name + "".join(_attribute(key, value) for key, value in (attributes or {}).items())
    if name in VOID and not children:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{join(*children)}</{name}>")


def join(*children: Child) -> Markup:
    """The children concatenated."""
    return Markup("".join(escape(part) for child in children
                          for part in ([child] if isinstance(child, str) else child)))


def escape(value: str) -> Markup:
    """``value`` for element content and quoted attributes, control characters shown; `Markup` as it is."""
    if isinstance(value, Markup):
        return value
    shown = value if value.isprintable() else "".join(visible(each) or each for each in value)
    return Markup(html.escape(shown))


def annotated(value: str) -> Markup:
    """As `escape`, with invisible characters marked and named."""
    return Markup("".join(_named(each) for each in value))


def visible(character: str) -> str | None:
    """A visible substitute for a character that is invisible or changes the display of its neighbours."""
    code = ord(character)
    if character in "\n\t":
        return None
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0x80 <= code < 0xA0 or 0xD800 <= code < 0xE000 or character in DIRECTIONS or character in INVISIBLE:
        return f"\u27e8{code:04X}\u27e9"
    if unicodedata.category(character) in ("Cn", "Co"):
        return f"\u27e8{code:04X}\u27e9"
    return None


def _named(character: str) -> str:
    shown = visible(character)
    if shown is None:
        return html.escape(character)
    return f'<span class="control" title="U+{ord(character):04X}">{shown}</span>'


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f' {key}=""'
    text = value if isinstance(value, str) else format(value, ".10g")
    if '"' in text:  # JSON: half as long between apostrophes
        return f" {key}='{escape(text).replace('&quot;', chr(34))}'"
    return f' {key}="{escape(text)}"'


def listed(parts: Sequence[Child], last: str = "and") -> Markup:
    """``a, b and c``."""
    pieces: list[Child] = []
    for index, part in enumerate(parts):
        pieces += [part, "" if index == len(parts) - 1 else f" {last} " if index == len(parts) - 2 else ", "]
    return join(*pieces)


def width_of(value: str) -> int:
    """Columns that text takes, two for wide characters."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 0 if unicodedata.combining(each) else 1
               for each in value)


def shorten(value: str, columns: int) -> str:
    """``value`` in at most so many columns, the middle omitted, since names often differ at both ends."""
    if width_of(value) <= columns:
        return value
    head, tail = _take(value, columns // 2), _take(value[::-1], (columns - 1) // 2)[::-1]
    return f"{head}\u2026{tail}"


def _take(value: str, columns: int) -> str:
    taken = ""
    for character in value:
        if width_of(taken + character) > columns:
            break
        taken += character
    return taken


BLUE, ORANGE = (84, 118, 226), (214, 112, 30)
"""Of values above and below zero: seen on light paper and on dark."""


def png(values: Sequence[Sequence[float]]) -> bytes:
    """A PNG of rows of numbers between -1 and 1: blue above zero and orange below, as opaque as they are large. Raises
    `ValueError`: a number is outside, or not finite."""
    height, width = len(values), len(values[0]) if values else 0
    for value in chain.from_iterable(values):
        if not -1.0 <= value <= 1.0:
            raise ValueError(f"{value} is not between -1 and 1")
    rows = b"".join(b"\0" + b"".join(bytes((*(BLUE if value >= 0 else ORANGE), round(abs(value) * 255)))
                                     for value in row) for row in values)
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    data = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def field(x: float, y: float, width: float, height: float, values: Sequence[Sequence[float]]) -> Markup:
    """The picture, stretched to a rectangle without smoothing, in a hairline."""
    data = "data:image/png;base64," + base64.b64encode(png(values)).decode()
    # Both ways of asking for hard edges: browsers read the style, converters the attribute.
    picture = tag("image", {"x": round(x, 1), "y": round(y, 1), "width": round(width, 1), "height": round(height, 1),
                            "href": data, "preserveAspectRatio": "none", "image-rendering": "optimizeSpeed",
                            "style": "image-rendering:pixelated"})
    frame = tag("rect", {"class": "edge", "x": round(x - 0.5, 1), "y": round(y - 0.5, 1),
                         "width": round(width + 1, 1), "height": round(height + 1, 1)})
    return Markup(picture + frame)

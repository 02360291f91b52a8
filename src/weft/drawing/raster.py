"""Fields of numbers as small pictures inside a drawing: one point for each number, whose opacity is its value."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from itertools import chain

from weft.drawing.markup import Markup, tag

BLUE, ORANGE = (84, 118, 226), (214, 112, 30)
"""Of values above and below zero: seen on light paper and on dark."""


def png(values: Sequence[Sequence[float]]) -> bytes:
    """A PNG of rows of numbers between -1 and 1: blue above zero and orange below, as opaque as they are large.

    Raises:
        ValueError: a number is outside, or not finite.
    """
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

"""What a drawing says, read back from its markup."""

from __future__ import annotations

import base64
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from weft.drawing.figure import Figure

SVG = "{http://www.w3.org/2000/svg}"


def tree(figure: Figure) -> ElementTree.Element:
    """The file of a drawing, which must be well-formed."""
    return ElementTree.fromstring(figure.alone())


def attributes(figure: Figure, name: str) -> list[str]:
    """The values of an attribute, in the order of drawing."""
    return [each.attrib[name] for each in tree(figure).iter() if name in each.attrib]


def grids(figure: Figure) -> list[list[list[float]]]:
    """The shares of every grid of cells."""
    found = []
    for group in tree(figure).iter(f"{SVG}g"):
        if "data-grid" in group.attrib:
            rows: dict[float, list[tuple[float, float]]] = {}
            for cell in group.iter(f"{SVG}rect"):
                lit = cell.attrib["class"] in ("lit", "own")
                share = float(cell.attrib.get("fill-opacity", 1.0)) if lit else 0.0
                rows.setdefault(float(cell.attrib["y"]), []).append((float(cell.attrib["x"]), share))
            found.append([[share for _, share in sorted(rows[y])] for y in sorted(rows)])
    return found


def fields(figure: Figure) -> list[NDArray[np.float64]]:
    """The numbers of every field of points, to a 255th."""
    return [_decoded(image.attrib["href"]) for image in tree(figure).iter(f"{SVG}image")]


def _decoded(link: str) -> NDArray[np.float64]:
    data = base64.b64decode(link.removeprefix("data:image/png;base64,"))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    chunks = dict(_chunks(data[8:]))
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 4 * width)
    assert (rows[:, 0] == 0).all(), "no filter"
    points = rows[:, 1:].reshape(height, width, 4).astype(np.float64)
    return np.where(points[..., 2] > points[..., 0], 1.0, -1.0) * points[..., 3] / 255


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    while data:
        size = struct.unpack(">I", data[:4])[0]
        name, content, check = data[4:8], data[8:8 + size], data[8 + size:12 + size]
        assert struct.unpack(">I", check)[0] == zlib.crc32(name + content)
        yield name, content
        data = data[12 + size:]


def curves(figure: Figure) -> dict[str, list[tuple[float, float]]]:
    """The points of every curve by its name, in the coordinates of the drawing."""
    found: dict[str, list[tuple[float, float]]] = {}
    for group in tree(figure).iter(f"{SVG}g"):
        if "data-curve" in group.attrib:
            path = next(group.iter(f"{SVG}path")).attrib["d"]
            pairs = [each.split(" ") for each in path.replace("M", "L").split("L") if each]
            found[group.attrib["data-curve"]] = [(float(x), float(y)) for x, y in pairs]
    return found


def texts(figure: Figure) -> list[tuple[float, float, str, str, bool]]:
    """Every text with its place: x, y, words, anchor, and whether its font is the larger one."""
    return [(float(each.attrib.get("x", "nan")), float(each.attrib.get("y", "nan")), each.text or "",
             each.attrib.get("text-anchor", "start"), "title" in each.attrib.get("class", ""))
            for each in tree(figure).iter(f"{SVG}text")]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes overlap, a letter being 0.52 of its font's size wide on average."""
    boxes = []
    for x, y, words, anchor, large in texts(figure):
        size = 12.0 if large else 11.0
        width = 0.52 * size * len(words)
        left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        if x == x:
            boxes.append((left, y - 0.7 * size, left + width, y + 0.1 * size, words))
    return [(a[4], b[4]) for index, a in enumerate(boxes) for b in boxes[index + 1:]
            if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]]

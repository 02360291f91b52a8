"""Shapes of diagrams: boxes of text, wires with arrowheads, sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.drawing.marks import Point, path_data
from weft.drawing.markup import Attributes, Markup, join, shorten, tag, width_of

LETTER = 6.1
"""Units that a letter of the smaller font takes on average."""
LINE = 14
"""Units between lines of text."""
TIP = 5
"""Length of an arrowhead."""


def label(x: float, y: float, text: str, *, kind: str | None = None, anchor: str | None = None,
          columns: int = 200) -> Markup:
    """A line of text with its baseline at y, in at most so many columns."""
    return tag("text", {"x": round(x, 1), "y": round(y, 1), "class": kind, "text-anchor": anchor},
               shorten(text, columns))


def wrapped(text: str, columns: int, lines: int = 2) -> list[str]:
    """A text in lines of at most so many columns, broken at spaces; the last line is shortened."""
    found = [""]
    words = text.split(" ")
    for index, word in enumerate(words):
        joined = f"{found[-1]} {word}".strip()
        if width_of(joined) <= columns or not found[-1]:
            found[-1] = joined
        elif len(found) < lines:
            found.append(word)
        else:
            found[-1] = " ".join([found[-1], *words[index:]])
            break
    return [shorten(line, columns) for line in found]


def text_box(x: float, y: float, width: float, height: float, title: str, lines: Sequence[str] = (), *,
             right: str = "", kind: str = "box", attributes: Attributes | None = None) -> Markup:
    """A box with a title, a note at the title's right, and lines beneath."""
    columns = int((width - 16) / LETTER)
    beside = int(width_of(right) + 1) if right else 0
    inner: list[Markup] = [tag("rect", {"class": kind, "x": round(x, 1), "y": round(y, 1), "width": round(width, 1),
                                        "height": round(height, 1), "rx": 4})]
    if lines or right:
        # The title is set in a wider font.
        inner.append(label(x + 8, y + 15, title, kind="title", columns=int((columns - beside) / 1.15)))
        inner += [label(x + width - 8, y + 15, right, anchor="end")] if right else []
        inner += [label(x + 8, y + 15 + LINE * (index + 1), line, columns=columns) for index, line in enumerate(lines)]
    else:
        inner.append(label(x + width / 2, y + height / 2 + 4, title, kind="name", anchor="middle", columns=columns))
    return tag("g", attributes, *inner)


def wire(points: Iterable[Point], *, kind: str = "wire", arrow: bool = False) -> Markup:
    """A line through the points, with an arrowhead at its last point."""
    path = list(points)
    line = tag("path", {"class": kind, "d": path_data(path)})
    return join(line, tip(path[-2], path[-1], f"{kind}-mark" if kind == "memory" else "tip-mark")) if arrow else line


def tip(start: Point, end: Point, kind: str = "tip-mark") -> Markup:
    """The arrowhead at the end of a line."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = (dx * dx + dy * dy) ** 0.5 or 1.0
    dx, dy = dx / length, dy / length
    left = (end[0] - TIP * dx - TIP * 0.6 * dy, end[1] - TIP * dy + TIP * 0.6 * dx)
    right = (end[0] - TIP * dx + TIP * 0.6 * dy, end[1] - TIP * dy - TIP * 0.6 * dx)
    return tag("path", {"class": kind, "d": path_data([end, left, right]) + "Z"})


def plus(x: float, y: float, radius: float = 6.5) -> Markup:
    """A sum."""
    cross = f"M{x - 3.5:g} {y:g}H{x + 3.5:g}M{x:g} {y - 3.5:g}V{y + 3.5:g}"
    return join(tag("circle", {"class": "sum", "cx": x, "cy": y, "r": radius}),
                tag("path", {"class": "wire", "d": cross}))

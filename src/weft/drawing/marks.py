"""Marks of a chart: lines, markers, whiskers, and labels at the ends of lines that do not overlap.

Shapes of diagrams: boxes of text, wires with arrowheads, sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weft.drawing.markup import Attributes, Markup, join, shorten, tag, width_of

Point: TypeAlias = tuple[float, float]

DASHES = ("", "6 2.5", "1.5 2.2", "8 2.5 1.5 2.5")
NEAR = 3.0
"""A label this close to its line's end needs no leader."""
SHAPES: tuple[tuple[Point, ...], ...] = (
    (),
    ((-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)),
    ((0, -1.15), (1.1, 0.85), (-1.1, 0.85)),
    ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
    ((0, 1.15), (1.1, -0.85), (-1.1, -0.85)),
    ((-0.4, -1.1), (0.4, -1.1), (0.4, -0.4), (1.1, -0.4), (1.1, 0.4), (0.4, 0.4), (0.4, 1.1), (-0.4, 1.1), (-0.4, 0.4),
     (-1.1, 0.4), (-1.1, -0.4), (-0.4, -0.4)),
    ((0, -1.2), (1.14, -0.37), (0.7, 0.97), (-0.7, 0.97), (-1.14, -0.37)),
    ((0, -1.35), (0.37, -0.37), (1.35, 0), (0.37, 0.37), (0, 1.35), (-0.37, 0.37), (-1.35, 0), (-0.37, -0.37)),
)
"""Outlines of the markers around the origin; the first is a circle."""


@dataclass(frozen=True)
class ModelStyle:
    """The style of a model on all charts: colours repeat after eight models, then with hollow markers."""

    index: int

    @property
    def colour(self) -> str:
        """The class in the style sheet."""
        return f"m{self.index % 8}"

    @property
    def dash(self) -> str:
        """The dashes of its lines; they differ when colours repeat."""
        return DASHES[(self.index + self.index // 8) % len(DASHES)]

    @property
    def hollow(self) -> bool:
        """Whether the marker is hollow: in every second round of colours."""
        return self.index // 8 % 2 == 1

    @property
    def outline(self) -> tuple[Point, ...]:
        """The shape of its marker."""
        return SHAPES[self.index % len(SHAPES)]


@dataclass(frozen=True)
class Label:
    """A name beside the end of a line."""

    y: float
    text: str
    style: ModelStyle


def line(points: Iterable[Point], attributes: Attributes | None = None, digits: int = 1) -> Markup:
    """A path through the points, of a class without a fill; the line is interrupted at points that are not finite."""
    return tag("path", {"d": path_data(points, digits), **(attributes or {})})


def path_data(points: Iterable[Point], digits: int = 1) -> str:
    """M and L commands; a break where a point is not finite."""
    data, pen = "", "M"
    for x, y in points:
        if math.isfinite(x) and math.isfinite(y):
            data += f"{pen}{_short(x, digits)} {_short(y, digits)}"
            pen = "L"
        else:
            pen = "M"
    return data


def _short(value: float, digits: int) -> str:
    shown = f"{value:.{digits}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def marker(x: float, y: float, style: ModelStyle, size: float = 3.2) -> Markup:
    """The model's marker at a point."""
    kind = "mark hollow" if style.hollow else "mark"
    if not style.outline:
        return tag("circle", {"class": kind, "cx": round(x, 2), "cy": round(y, 2), "r": size})
    return tag("path", {"class": kind, "d": _outline(x, y, [(size * dx, size * dy) for dx, dy in style.outline])})


def spots(places: Iterable[Point]) -> Markup:
    """Round spots at the points of a chart of one model, in one path."""
    return tag("path", {"class": "spots", "d": "".join(f"M{_short(x, 1)} {_short(y, 1)}h0" for x, y in places)})


def _outline(x: float, y: float, corners: Sequence[Point]) -> str:
    """A closed path around a point, in steps from corner to corner, which are shorter to write than places."""
    at, data = (round(x + corners[0][0], 1), round(y + corners[0][1], 1)), ""
    data = f"M{_short(at[0], 1)} {_short(at[1], 1)}l"
    for dx, dy in corners[1:]:
        step = (round(x + dx - at[0], 1), round(y + dy - at[1], 1))
        data += f"{_short(step[0], 1)} {_short(step[1], 1)} "
        at = (at[0] + step[0], at[1] + step[1])
    return data.rstrip() + "z"


def swatch(style: ModelStyle) -> Markup:
    """A short piece of the model's line with its marker, for tables and text of a page that has `swatches`."""
    return tag("svg", {"class": f"swatch {style.colour}", "width": 28, "height": 14, "aria-hidden": "true"},
               tag("use", {"href": f"#w{style.index}"}))


def swatches(styles: Iterable[ModelStyle]) -> Markup:
    """The definitions of every model's `swatch`, written once."""
    pieces = [tag("g", {"id": f"w{style.index}"},
                  tag("line", {"x1": 1, "y1": 7, "x2": 27, "y2": 7, "class": "mean",
                               "stroke-dasharray": style.dash or None}), marker(14, 7, style)) for style in styles]
    return tag("svg", {"width": 0, "height": 0, "class": "defined", "aria-hidden": "true"}, tag("defs", None, pieces))


def whisker(x: float, low: float, high: float, *, cap: float = 3) -> Markup:
    """A vertical interval."""
    steps = f"M{x - cap:.1f} {low:.1f}h{2 * cap:g}M{x:.1f} {low:.1f}V{high:.1f}M{x - cap:.1f} {high:.1f}h{2 * cap:g}"
    return tag("path", {"class": "whisker", "d": steps})


def end_labels(labels: Sequence[Label], x: float, top: float, bottom: float, columns: int) -> Markup:
    """Names at ``x``, moved up or down until none overlaps, with a thin line from their proper places."""
    ordered = sorted(labels, key=lambda label: (label.y, label.style.index))
    gap = min(12.5, (bottom - top) / max(1, len(ordered) - 1))
    places = spread([label.y for label in ordered], gap, top, bottom)
    return join([_end_label(label, x, place, columns) for label, place in zip(ordered, places, strict=True)])


def _end_label(label: Label, x: float, y: float, columns: int) -> Markup:
    leader = Markup("") if abs(label.y - y) < NEAR else tag(
        "path", {"class": "leader", "d": f"M{x + 3:.1f} {label.y:.1f}L{x + 10:.1f} {y:.1f}"})
    text = tag("text", {"x": round(x + 20, 1), "y": round(y + 3.6, 1), "class": "name"}, shorten(label.text, columns))
    return tag("g", {"class": f"label {label.style.colour}", "data-model": str(label.style.index)},
               leader, marker(x + 14, y, label.style, 2.6), text)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending places at least ``gap`` apart between ``low`` and ``high``, close to the given ones (ascending)."""
    blocks: list[tuple[float, int]] = []
    for place in wanted:
        blocks.append((place, 1))
        while len(blocks) > 1 and blocks[-1][0] - blocks[-2][0] < gap * (blocks[-2][1] + blocks[-1][1]) / 2:
            (first, many), (second, more) = blocks[-2:]
            blocks[-2:] = [((first * many + second * more) / (many + more), many + more)]
        # A block keeps its centre; those pushed over the edge come back below.
    places = [centre + (index - (size - 1) / 2) * gap for centre, size in blocks for index in range(size)]
    for index in range(len(places)):
        places[index] = max(places[index], low + index * gap)
    for index in range(len(places)):
        places[-1 - index] = min(places[-1 - index], high - index * gap)
    return places


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

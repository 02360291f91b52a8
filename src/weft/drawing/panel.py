"""One chart: a frame with axes, a title, a description, and its series."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from weft.drawing.axes import Axis
from weft.drawing.marks import Label, ModelStyle, end_labels
from weft.drawing.markup import Child, Markup, join, tag


@dataclass(frozen=True)
class PlotBox:
    """The size of a drawing and the margins of its plot, in units of the drawing."""

    width: float = 360
    height: float = 286
    left: float = 42
    right: float = 104
    top: float = 12
    bottom: float = 40

    @property
    def x(self) -> tuple[float, float]:
        """The left and right ends of the plot."""
        return self.left, self.width - self.right

    @property
    def y(self) -> tuple[float, float]:
        """The bottom and top ends of the plot: values grow upwards."""
        return self.height - self.bottom, self.top


SMALL = PlotBox(width=220, height=176, left=40, right=12, top=10, bottom=36)


@dataclass(frozen=True)
class Hover:
    """A point for the script's tooltip: its place and its text."""

    x: float
    y: float
    at: str
    value: str


@dataclass(frozen=True)
class Series:
    """The series of one model.

    Attributes:
        points: for the crosshair, ascending in x.
        label: beside the end of the line; None for none.
    """

    name: str
    style: ModelStyle
    drawing: Markup
    points: tuple[Hover, ...] = ()
    label: Label | None = None


@dataclass(frozen=True)
class Panel:
    """A chart with its text.

    Attributes:
        name: of the element, unique in the page.
        description: what is to be seen, for those who cannot see it.
        behind: drawn before the series.
    """

    name: str
    heading: Child
    title: str
    description: str
    x: Axis
    y: Axis
    x_label: str
    y_label: str
    series: Sequence[Series]
    box: PlotBox = field(default_factory=PlotBox)
    behind: Markup = Markup("")
    note: Child = ""


def draw(panel: Panel) -> Markup:
    """Draw the figure of a chart."""
    box = panel.box
    labels = [series.label for series in panel.series if series.label is not None]
    # Twelve letters of the label font fit beside a plot that leaves 104 units; others in proportion.
    names = end_labels(labels, box.x[1], box.top + 4, box.y[0] - 4, int((box.right - 22) / 6)) if labels else Markup("")
    svg = tag("svg", {"viewBox": f"0 0 {box.width:g} {box.height:g}", "role": "img", "class": "chart",
                      "aria-labelledby": f"{panel.name}-t {panel.name}-d"},
              tag("title", {"id": f"{panel.name}-t"}, panel.title),
              tag("desc", {"id": f"{panel.name}-d"}, panel.description),
              grid(panel), panel.behind, [_series(series) for series in panel.series], names)
    note = tag("p", {"class": "panel-note"}, panel.note) if panel.note else ""
    return tag("div", {"class": "panel"}, tag("h4", None, panel.heading), note, tag("div", {"class": "plot"}, svg))


def _series(series: Series) -> Markup:
    points = [[round(point.x, 1), round(point.y, 1), point.at, point.value] for point in series.points]
    data = json.dumps(points, ensure_ascii=False, separators=(",", ":")) if points else None
    return tag("g", {"class": f"series {series.style.colour}", "data-model": str(series.style.index),
                     "data-points": data}, series.drawing)


def grid(panel: Panel) -> Markup:
    """Horizontal hairlines, ticks, numbers and labels of both axes."""
    box = panel.box
    # The vertical axis is named in the heading's note, where it can be read without turning one's head.
    name = tag("text", {"class": "axis-name", "x": (box.x[0] + box.x[1]) / 2, "y": box.height - 6}, panel.x_label)
    return tag("g", {"class": "axes", "aria-hidden": "true", "data-bottom": box.y[0]},
               _rows(panel), _columns(panel), name)


def _rows(panel: Panel) -> Markup:
    left, right = panel.box.x
    places = [(panel.y.place(tick), panel.y.write(tick)) for tick in panel.y.ticks]
    lines = "".join(f"M{left:g} {round(y, 1):g}H{right:g}" for y, _ in places)
    return join(tag("path", {"class": "grid", "d": lines}) if lines else "", [
        tag("text", {"class": "tick end", "x": left - 6, "y": round(y + 3.5, 1)}, text) for y, text in places])


def _columns(panel: Panel) -> Markup:
    bottom = panel.box.y[0]
    places = _apart([(panel.x.place(tick), panel.x.write(tick)) for tick in panel.x.ticks], 5.9)
    lines = f"M{panel.box.x[0]:g} {bottom:g}H{panel.box.x[1]:g}" + "".join(
        f"M{round(x, 1):g} {bottom:g}v4" for x, _ in places)
    return join(tag("path", {"class": "base", "d": lines}), [
        tag("text", {"class": "tick", "x": round(x, 1), "y": bottom + 15}, text) for x, text in places])


def _apart(places: Iterable[tuple[float, str]], letter: float) -> list[tuple[float, str]]:
    """The ticks without those whose numbers would touch the one before."""
    kept: list[tuple[float, str]] = []
    for x, text in places:
        if not kept or x - kept[-1][0] >= letter * (len(text) + len(kept[-1][1])) / 2 + 6:
            kept.append((x, text))
    return kept

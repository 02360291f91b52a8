"""Curves of numbers as a figure: a frame with axes, lines, and their names at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from weft.drawing import axes
from weft.drawing.axes import Axis
from weft.drawing.figure import Figure
from weft.drawing.marks import Label, ModelStyle, end_labels, line
from weft.drawing.markup import Markup, tag
from weft.drawing.panel import Panel, PlotBox, grid

Scale = Literal["linear", "logarithmic"]


@dataclass(frozen=True)
class Curve:
    """A line through points ascending in x; values that are not finite interrupt it.

    Attributes:
        style: its colour and dashes.
        dots: whether each point is marked, for series without values between.
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: int = 0
    dots: bool = False


def chart(name: str, title: str, description: str, curves: Sequence[Curve], x_label: str, y_label: str, *,
          scale: Scale = "linear", lengths: bool = False, width: float = 360, height: float = 250, letters: int = 12,
          levels: Sequence[float] = (), include: Sequence[float] = ()) -> Figure:
    """A figure of curves.

    Args:
        description: what is to be seen.
        curves: at least one, with at least one finite value.
        y_label: the vertical axis, written above it.
        lengths: whether the horizontal axis is of lengths of context: logarithmic, with ticks at powers of two.
        letters: room for the names of the curves; longer ones are shortened.
        levels: values at which a horizontal line is drawn.
        include: values that the vertical axis contains besides.
    """
    several = len(curves) > 1
    box = PlotBox(width=width, height=height, left=52, right=24 + 6 * letters if several else 14, top=26, bottom=40)
    places = [at for curve in curves for at, _ in curve.points]
    x = axes.powers_of_two([int(at) for at in places], *box.x, _short) if lengths else axes.linear(
        places, *box.x, margin=0.0, count=6)
    values = [value for curve in curves for _, value in curve.points]
    shown = [*values, *levels, *include]
    y = axes.linear(shown, *box.y) if scale == "linear" else axes.logarithmic(shown, *box.y, _short)
    assert x is not None and y is not None, "there is a finite value"
    panel = Panel(name, "", title, description, x, y, x_label, "", (), box)
    rules = [tag("line", {"class": "zero", "x1": box.x[0], "x2": box.x[1], "y1": round(y.place(level), 1),
                          "y2": round(y.place(level), 1)}) for level in levels]
    heading = tag("text", {"x": 6, "y": 13, "class": "axis-name"}, y_label)
    return Figure(name, title, description, width, height, Markup("".join(
        [heading, grid(panel), *rules, *(_curve(curve, x, y) for curve in curves),
         _names(curves, x, y, box, letters) if several else ""])))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def _curve(curve: Curve, x: Axis, y: Axis) -> Markup:
    style = ModelStyle(curve.style)
    places = [(x.place(at), y.place(value) if y.holds(value) else float("nan")) for at, value in curve.points]
    dash: dict[str, str | float | bool | None] = {"class": "mean", "stroke-dasharray": style.dash or None}
    dots = [tag("circle", {"class": "dots", "cx": round(left, 1), "cy": round(top, 1), "r": 2.2})
            for left, top in places if curve.dots and top == top]
    return tag("g", {"class": style.colour, "data-curve": curve.name}, line(places, dash), dots)


def _names(curves: Sequence[Curve], x: Axis, y: Axis, box: PlotBox, letters: int) -> Markup:
    """The curves' names at their last points."""
    labels = []
    for curve in curves:
        last = next((value for _, value in reversed(curve.points) if y.holds(value)), None)
        if last is not None:
            labels.append(Label(y.place(last), curve.name, ModelStyle(curve.style)))
    return end_labels(labels, box.x[1], box.top + 4, box.y[0] - 4, letters)

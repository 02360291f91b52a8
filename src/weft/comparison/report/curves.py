"""Loss curves: every run as a thin line, the mean of each model's runs as a bold one, against three currencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from weft.comparison.report.view import View
from weft.comparison.results import CurvePoint, Entry
from weft.drawing.axes import Axis, logarithmic
from weft.drawing.marks import Label, Point, line, marker
from weft.drawing.markup import Markup, join, listed, tag
from weft.drawing.numbers import brief, duration, fixed, integer, si
from weft.drawing.panel import Box, Hover, Panel, Series, draw
from weft.drawing.table import Column, folded, table

MOST_POINTS = 48
"""Of a drawn line: more cannot be seen on a chart 10 cm wide."""


@final
@dataclass(frozen=True)
class Currency:
    """What a curve is drawn against."""

    name: str
    heading: str
    label: str
    read: Callable[[CurvePoint], float]
    write: Callable[[float], str]


CURRENCIES = (
    Currency("tokens", "against tokens", "training tokens", lambda point: float(point.tokens), si),
    Currency("flops", "against FLOPs", "training FLOPs", lambda point: point.flops, si),
    Currency("seconds", "against time", "seconds of training", lambda point: point.seconds,
             lambda value: duration(value).removesuffix("\u202fs")),
)


def curves(view: View) -> Markup:
    """Three charts of the same curves, and their numbers."""
    drawn = [entry for entry in view.result.entries if any(map(drawable, each_curve(entry)))]
    if not drawn:
        return tag("p", {"class": "none"}, "No run was measured during training.")
    panels = [_panel(view, drawn, currency) for currency in CURRENCIES]
    lost = [view.name(entry) for entry in drawn if not entry.finished]
    note = tag("p", {"class": "small"}, "\u2717 no run finished: ", listed(lost), ".") if lost else ""
    return join(tag("div", {"class": "panels"}, panels), note,
                folded("The numbers of these curves", _numbers(view, drawn)))


def lead(view: View) -> Markup:
    """What the lines are."""
    counted_too = any(not entry.trainable and entry.finished for entry in view.result.entries)
    level = (" A model that is counted, not trained, has one figure: it begins where the model has read its tokens, "
             "and stays level from there." if counted_too else "")
    thin = (" Thin lines are single runs, bold ones the mean of a model's runs." if view.result.seeds > 1 else "")
    return join("Bits per byte on a part of the test text, so that curves end near the figures of the table and not on "
                f"them.{thin}{level}")


def each_curve(entry: Entry) -> list[tuple[CurvePoint, ...]]:
    """The curves of all runs, those that failed included."""
    return [run.curve for run in entry.runs]


def drawable(curve: Sequence[CurvePoint]) -> bool:
    """Whether any of its points is finite."""
    return any(math.isfinite(point.bits_per_byte) for point in curve)


def mean_curve(entry: Entry) -> tuple[CurvePoint, ...]:
    """Means over the finished runs at the steps that all of them validated."""
    finished = [{point.step: point for point in run.curve} for run in entry.finished if run.curve]
    if not finished:
        return ()
    steps = sorted(set.intersection(*(set(points) for points in finished)))
    return tuple(_mean([points[step] for points in finished]) for step in steps)


def _mean(points: Sequence[CurvePoint]) -> CurvePoint:
    def over(read: Callable[[CurvePoint], float]) -> float:
        return sum(map(read, points)) / len(points)

    return CurvePoint(points[0].step, round(over(lambda point: point.tokens)), over(lambda point: point.flops),
                      over(lambda point: point.seconds), over(lambda point: point.bits_per_byte),
                      over(lambda point: point.loss))


def thinned(points: Sequence[CurvePoint], most: int = MOST_POINTS) -> list[CurvePoint]:
    """At most so many, even on a logarithmic axis, the first and last kept."""
    if len(points) <= most:
        return list(points)
    ratio = len(points) ** (1 / (most - 1))
    kept = sorted({0, len(points) - 1} | {min(len(points), round(ratio**index)) - 1 for index in range(most)})
    return [points[index] for index in kept]


def counted(entry: Entry) -> bool:
    """Whether the model has no course to draw: it was counted, or validated only once."""
    return not entry.trainable or max((len(curve) for curve in each_curve(entry)), default=0) < 2


def _panel(view: View, drawn: Sequence[Entry], currency: Currency) -> Markup:
    box = Box()
    trained = [entry for entry in drawn if not counted(entry)]
    points = [point for entry in drawn for curve in each_curve(entry) for point in curve]
    moving = [point for entry in trained for curve in each_curve(entry) for point in curve]
    # Counting takes much less time than training; what lies left of the trained models' points begins at the edge.
    latest = [max(currency.read(point) for curve in each_curve(entry) for point in curve) for entry in drawn]
    x = logarithmic([*map(currency.read, moving or points), max(latest)], *box.x, brief(currency.write), count=5)
    y = logarithmic([point.bits_per_byte for point in points], *box.y, lambda value: f"{value:.3g}", count=6)
    if x is None or y is None:
        return tag("p", {"class": "none"}, f"Nothing can be drawn against {currency.name}.")
    series = [_series(entry, view, currency, x, y) for entry in drawn]
    absent = [entry.name for entry, each in zip(drawn, series, strict=True) if not each.points and not entry.trainable]
    return draw(Panel(
        f"curve-{currency.name}", f"Bits per byte {currency.heading}",
        f"Bits per byte of the test text {currency.heading}",
        f"Both axes logarithmic. {_ends(drawn)} The numbers are in the table below the charts.",
        x, y, currency.label, "bits per byte", series, box,
        note=f"not drawn, as counting has no such cost: {', '.join(absent)}" if absent else ""))


def _ends(drawn: Sequence[Entry]) -> str:
    ends = [f"{entry.name} ends at {fixed(curve[-1].bits_per_byte, 3)}" for entry in drawn
            if (curve := mean_curve(entry))]
    return "; ".join(ends) + "." if ends else "No run finished."


def _series(entry: Entry, view: View, currency: Currency, x: Axis, y: Axis) -> Series:
    style = view.styles[entry.name]
    if counted(entry):
        return _level(entry, view, currency, x, y)
    seeds = [_places(curve, currency, x, y) for curve in each_curve(entry) if drawable(curve)]
    mean = [point for point in thinned(mean_curve(entry)) if x.holds(currency.read(point))
            and y.holds(point.bits_per_byte)]
    thin = [line(points, {"class": "seed"}) for points in seeds]
    hover = tuple(Hover(x.place(currency.read(point)), y.place(point.bits_per_byte),
                        currency.write(currency.read(point)),
                        fixed(point.bits_per_byte, 3)) for point in mean)
    if not hover:
        return Series(entry.name, style, join(thin), (), _label_of_stopped(entry, view, seeds))
    bold = line([(point.x, point.y) for point in hover], {"class": "mean", "stroke-dasharray": style.dash or None})
    end = marker(hover[-1].x, hover[-1].y, style)
    return Series(entry.name, style, join(thin, bold, end), hover, Label(hover[-1].y, entry.name, style))


def _label_of_stopped(entry: Entry, view: View, seeds: Sequence[Sequence[Point]]) -> Label | None:
    last = next((points[-1] for points in seeds if points), None)
    return Label(last[1], f"{entry.name} \u2717", view.styles[entry.name]) if last else None


def _places(curve: Sequence[CurvePoint], currency: Currency, x: Axis, y: Axis) -> list[Point]:
    return [(x.place(currency.read(point)), y.place(point.bits_per_byte)) for point in thinned(curve)
            if x.holds(currency.read(point)) and y.holds(point.bits_per_byte)]


def _level(entry: Entry, view: View, currency: Currency, x: Axis, y: Axis) -> Series:
    """A single figure, at what it took to reach it. Counting costs nothing more, so its figure holds from there on;
    what a model that was validated once is worth later is not known."""
    style = view.styles[entry.name]
    points = [curve[-1] for curve in each_curve(entry) if drawable(curve[-1:])]
    if not points:
        return Series(entry.name, style, Markup(""))
    mean = _mean(points)  # of the text of the curves, which is a part of the table's
    spent = max(map(currency.read, points))
    if not (y.holds(mean.bits_per_byte) and 0 < spent <= x.high):
        return Series(entry.name, style, Markup(""))
    start, height = x.place(max(spent, x.low)), y.place(mean.bits_per_byte)
    places = [(start, height)] if entry.trainable else [(start, height), (x.end, height)]
    hover = tuple(Hover(*place, currency.write(spent), fixed(mean.bits_per_byte, 3)) for place in places)
    drawing = join(line(places, {"class": "mean level", "stroke-dasharray": style.dash or None}),
                   marker(start, height, style))
    return Series(entry.name, style, drawing, hover, Label(height, entry.name, style))


def _numbers(view: View, drawn: Sequence[Entry]) -> Markup:
    columns = [Column("Model", number=False), Column("Step"), Column("Tokens"), Column("FLOPs"), Column("Time"),
               Column("Bits per byte")]
    rows = [[view.name(entry), integer(point.step), si(point.tokens), si(point.flops), duration(point.seconds),
             fixed(point.bits_per_byte, 3)] for entry in drawn for point in thinned(mean_curve(entry), 12)]
    return table("Means over the finished runs at some of the checkpoints", columns, rows, name="curve-numbers")

"""Strips: charts as wide as their cell, one to a row of a table, so that text keeps its size on every screen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from weft.comparison.report.view import View
from weft.comparison.results import Entry, RunResult
from weft.drawing.axes import Axis, linear
from weft.drawing.marks import Style, marker
from weft.drawing.markup import Markup, tag
from weft.drawing.numbers import brief, known, octets, si

ROW = 26
"""Height of a strip, in pixels."""


def dots(view: View) -> Markup:
    """Tokens a second and memory; counting is too fast for the scale of training, and its speed is in the table."""
    trained = [entry for entry in view.ranked if entry.trainable]
    speed = _plot(view, trained, "Training speed", "tokens a second, median of the runs; lines: slowest to fastest run",
                  lambda run: run.tokens_per_second, si, "dots-speed")
    memory = _plot(view, view.ranked, "Peak memory of training", "median of the runs",
                   lambda run: float(run.peak_memory_bytes), octets, "dots-memory")
    return tag("div", {"class": "stack"}, speed, memory) if speed or memory else Markup("")


def percentage(axis: Axis, value: float) -> str:
    """Place on a strip."""
    return f"{100 * axis.share(value):.2f}%"


def at(axis: Axis, value: float, drawing: Markup) -> Markup:
    """A drawing around the origin, put at a value of the strip."""
    return tag("svg", {"x": percentage(axis, value), "y": "50%", "overflow": "visible", "width": 1, "height": 1},
               drawing)


def strip(axis: Axis, *children: Markup, zero: bool = False) -> Markup:
    """A row's piece of the chart; its numbers stand in the same row."""
    lines = [_upright(axis, tick, "zero" if zero and tick == 0 else "grid") for tick in axis.ticks]
    return tag("svg", {"class": "strip", "height": ROW, "width": "100%", "aria-hidden": "true", "focusable": "false"},
               lines, *children)


def rule(axis: Axis, low: float, high: float, y: float, kind: str) -> Markup:
    """A level line between two values."""
    return tag("line", {"class": kind, "x1": percentage(axis, low), "x2": percentage(axis, high), "y1": y, "y2": y})


def scale(axis: Axis, title: str, description: str, name: str) -> Markup:
    """The numbers of the axis, with the words of the whole chart."""
    texts = [tag("text", {"class": "tick", "x": percentage(axis, tick), "y": 12, "text-anchor": "middle"},
                 axis.write(tick)) for tick in axis.ticks]
    return tag("svg", {"class": "strip chart", "height": 18, "width": "100%", "role": "img",
                       "aria-labelledby": f"{name}-t {name}-d"},
               tag("title", {"id": f"{name}-t"}, title), tag("desc", {"id": f"{name}-d"}, description), texts)


def _upright(axis: Axis, value: float, kind: str) -> Markup:
    where = percentage(axis, value)
    return tag("line", {"class": kind, "x1": where, "x2": where, "y1": 0, "y2": "100%"})


def _plot(view: View, entries: Sequence[Entry], title: str, note: str, read: Callable[[RunResult], float],
          write: Callable[[float], str], name: str) -> Markup:
    rows = []
    for entry in entries:
        values = [read(run) for run in entry.finished if known(read(run))]
        if values:
            rows.append((entry.name, statistics.median(values), min(values), max(values)))
    axis = linear([value for _, *values in rows for value in values], 0, 1, brief(write), include=(0.0,), count=3,
                  margin=0.0)
    if axis is None:
        return Markup("")
    axis = type(axis)(0.0, axis.high * 1.06, 0, 1, tuple(tick for tick in axis.ticks if tick >= 0), axis.write)
    spoken = "; ".join(f"{model}: {write(middle)}" for model, middle, _, _ in rows)
    body = [_row(view, model, view.styles[model], axis, (low, middle, high), write) for model, middle, low,
            high in rows]
    head = tag("tr", None, tag("th", {"scope": "col"}, "Model"),
               tag("td", {"class": "strip-cell"}, scale(axis, title, f"{note}. {spoken}.", name)),
               tag("th", {"scope": "col", "class": "number"}, "Median"))
    return tag("div", {"class": "panel"}, tag("table", {"class": "strips"},
               tag("caption", None, tag("strong", None, title), " ", tag("span", {"class": "panel-note"}, note)),
               tag("thead", None, head), tag("tbody", None, body)))


def _row(view: View, model: str, style: Style, axis: Axis, values: Sequence[float],
         write: Callable[[float], str]) -> Markup:
    low, middle, high = values
    stem = rule(axis, axis.low, middle, ROW / 2, "stem")
    ends = rule(axis, low, high, ROW / 2, "outer") if not math.isclose(low, high) else Markup("")
    return tag("tr", {"data-model": str(style.index)}, tag("th", {"scope": "row"}, view.key(model, 16)),
               tag("td", {"class": f"strip-cell {style.colour}"},
                   strip(axis, stem, ends, at(axis, middle, marker(0, 0, style, 4)))),
               tag("td", {"class": "number"}, write(middle)))

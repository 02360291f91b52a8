"""What context is worth: bits per byte by position, and bits per byte and perplexity by length of evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from weft.comparison.report.view import View
from weft.comparison.results import Entry, LengthPoint
from weft.drawing.axes import Axis, Logarithmic, linear, logarithmic, powers_of_two
from weft.drawing.marks import Label, line, marker
from weft.drawing.markup import Markup, join, tag
from weft.drawing.numbers import brief, fixed, integer, known, significant
from weft.drawing.panel import Box, Hover, Panel, Series, draw
from weft.drawing.table import Column, folded, table

Curve: TypeAlias = list[tuple[float, float]]
"""Values at positions or lengths, ascending."""


def context(view: View) -> Markup:
    """Three charts and their numbers."""
    positions = {entry.name: by_position(entry) for entry in view.result.entries}
    bits = {entry.name: by_length(entry, lambda point: point.bits_per_byte) for entry in view.result.entries}
    perplexity = {entry.name: by_length(entry, lambda point: point.perplexity) for entry in view.result.entries}
    charts = [
        _panel(view, positions, "position", "By position in context", "position in context, tokens", fixed_three, None),
        _panel(view, bits, "length", "By evaluation length", "evaluation window, tokens", fixed_three,
               trained_lengths(view)),
        _panel(view, perplexity, "perplexity", "Perplexity by evaluation length", "evaluation window, tokens",
               lambda value: significant(value), trained_lengths(view))]
    drawn = [chart for chart in charts if chart]
    if not drawn:
        return tag("p", {"class": "none"}, "No evaluation by position or length was recorded.")
    numbers = [folded("By position: the numbers", _by_position_table(view)) if any(positions.values()) else "",
               folded("By evaluation length: the numbers", _by_length_table(view)) if any(bits.values()) else ""]
    return join(tag("div", {"class": "panels"}, drawn), numbers)


def fixed_three(value: float) -> str:
    """Bits per byte of a chart."""
    return fixed(value, 3)


def by_position(entry: Entry) -> Curve:
    """Means over the finished runs at the middle of each stretch of positions."""
    found: dict[tuple[int, int], list[float]] = {}
    for run in entry.finished:
        for point in run.by_position:
            found.setdefault((point.first, point.last), []).append(point.bits_per_byte)
    # Positions count from zero, a logarithmic axis from one.
    return _means({math.sqrt((first + 1) * (last + 1)): values for (first, last), values in found.items()})


def by_length(entry: Entry, read: Callable[[LengthPoint], float | None]) -> Curve:
    """Means over the finished runs; lengths beyond the model's reach are missing."""
    found: dict[float, list[float]] = {}
    for run in entry.finished:
        for point in run.by_length:
            value = read(point)
            if value is not None:
                found.setdefault(float(point.context), []).append(value)
    return _means(found)


def _means(found: dict[float, list[float]]) -> Curve:
    means = ((place, sum(values) / len(values)) for place, values in sorted(found.items()))
    return [(place, mean) for place, mean in means if math.isfinite(mean)]


def trained_lengths(view: View) -> tuple[int, ...]:
    """Lengths of window that some model was trained on."""
    return tuple(sorted({entry.context for entry in view.result.entries if entry.trainable and entry.finished}))


def _panel(view: View, curves: dict[str, Curve], name: str, heading: str, x_label: str,
           write: Callable[[float], str], trained: Sequence[int] | None) -> Markup:
    box = Box()
    xs = [place for curve in curves.values() for place, _ in curve]
    values = [value for curve in curves.values() for _, value in curve]
    x = powers_of_two([round(place) for place in xs], *box.x, lambda value: integer(round(value)))
    y = _height(values, box)
    if x is None or y is None:
        return Markup("")
    series = [_series(view, entry, curves[entry.name], x, y, write) for entry in view.result.entries
              if curves[entry.name]]
    spoken = "; ".join(f"{model}: {write(curve[0][1])} at {curve[0][0]:.0f}, {write(curve[-1][1])} at "
                       f"{curve[-1][0]:.0f}"
                       for model, curve in curves.items() if curve)
    return draw(Panel(f"context-{name}", heading, f"{heading}, {len(series)} models", f"{spoken}.", x, y, x_label,
                      heading, series, box, _trained_marks(trained or (), x, box),
                      "trained length marked \u25bc" if trained
                      else "bits per byte of the targets behind so many tokens"))


def _height(values: Iterable[float], box: Box) -> Axis | None:
    """Linear unless the largest is several times the smallest."""
    found = list(values)
    if found and min(found) > 0 and max(found) / min(found) > 4:
        return logarithmic(found, *box.y, brief(significant), count=6)
    return linear(found, *box.y, count=6)


def _trained_marks(trained: Sequence[int], x: Logarithmic, box: Box) -> Markup:
    places = [x.place(length) for length in trained if x.holds(length)]
    return join([join(
        tag("line", {"class": "trained", "x1": round(at, 1), "x2": round(at, 1), "y1": box.top + 4,
                     "y2": box.height - box.bottom}),
        tag("path", {"class": "trained-mark", "d": f"M{at - 4:.1f} {box.top - 4:.1f}h8l-4 7z"})) for at in places])


def _series(view: View, entry: Entry, curve: Curve, x: Axis, y: Axis, write: Callable[[float], str]) -> Series:
    style = view.styles[entry.name]
    inside = [(place, value) for place, value in curve if x.holds(round(place)) and y.holds(value)]
    hover = tuple(Hover(x.place(max(x.low, min(place, x.high))), y.place(value), f"{integer(round(place))} tokens",
                        write(value))
                  for place, value in inside)
    path = [(point.x, point.y) for point in hover]
    drawing = join(line(path, {"class": "mean", "stroke-dasharray": style.dash or None}),
                   [marker(*place, style, 2.4) for place in path])
    return Series(entry.name, style, drawing, hover, Label(path[-1][1], entry.name, style) if path else None)


def _by_position_table(view: View) -> Markup:
    stretches = sorted({(point.first, point.last) for entry in view.result.entries for run in entry.finished
                        for point in run.by_position})
    columns = [Column("Model", number=False), *(Column(f"{integer(first)}\u2013{integer(last)}") for first,
                                                last in stretches)]
    rows = []
    for entry in view.result.entries:
        values = {stretch: [point.bits_per_byte for run in entry.finished for point in run.by_position
                            if (point.first, point.last) == stretch] for stretch in stretches}
        rows.append([view.name(entry), *(fixed(sum(each) / len(each), 3) if each else "\u2013"
                                         for each in values.values())])
    return table("Bits per byte of targets whose context is so many tokens long", columns, rows,
                 name="position-numbers")


def _by_length_table(view: View) -> Markup:
    lengths = sorted({point.context for entry in view.result.entries for run in entry.finished
                      for point in run.by_length})
    columns = [Column("Model", number=False), *(Column(integer(length)) for length in lengths)]
    rows = []
    for entry in view.result.entries:
        bits = dict(by_length(entry, lambda point: point.bits_per_byte))
        perplexity = dict(by_length(entry, lambda point: point.perplexity))
        rows.append([view.name(entry), *(_both(bits.get(length), perplexity.get(length)) for length in lengths)])
    return table("Bits per byte (perplexity per token) by length of the evaluation window, tokens", columns, rows,
                 name="length-numbers")


def _both(bits: float | None, perplexity: float | None) -> str:
    if not known(bits):
        return "out of reach"
    return f"{fixed(bits, 3)} ({significant(perplexity)})" if perplexity is not None else fixed(bits, 3)

"""The value of context and the cost of a token: bits per byte by position and by length of evaluation, time and state
of decoding against context, speed and memory of training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from weft.comparison.report.view import View
from weft.comparison.results import DecodePoint, LengthPoint, RunResult, StudyModel
from weft.drawing.axes import Axis, LogarithmicAxis, linear, logarithmic, powers_of_two
from weft.drawing.marks import Label, ModelStyle, line, marker, whisker
from weft.drawing.markup import Markup, join, listed, tag
from weft.drawing.numbers import brief, duration, fixed, integer, known, octets, si, significant
from weft.drawing.panel import Hover, Panel, PlotBox, Series, draw
from weft.drawing.tables import Column, at, folded, rule, scale, strip, table

Curve: TypeAlias = list[tuple[float, float]]
"""Values at positions or lengths, ascending."""


def context(view: View) -> Markup:
    """Two charts and their numbers, perplexities among them."""
    positions = {entry.name: by_position(entry) for entry in view.result.entries}
    bits = {entry.name: by_length(entry, lambda point: point.bits_per_byte) for entry in view.result.entries}
    charts = [
        _panel(view, positions, "position", "By position in context", "position in context, tokens", None),
        _panel(view, bits, "length", "By evaluation length", "evaluation window, tokens",
               tuple(sorted({entry.context for entry in view.result.entries if entry.trainable and entry.finished})))]
    drawn = [chart for chart in charts if chart]
    if not drawn:
        return tag("p", {"class": "none"}, "No evaluation by position or length was recorded.")
    numbers = [folded("By position: the numbers", _by_position_table(view)) if any(positions.values()) else "",
               folded("By evaluation length: the numbers", _by_length_table(view)) if any(bits.values()) else ""]
    return join(tag("div", {"class": "panels"}, drawn), numbers)


def by_position(entry: StudyModel) -> Curve:
    """Means over the finished runs at the middle of each stretch of positions."""
    found: dict[tuple[int, int], list[float]] = {}
    for run in entry.finished:
        for point in run.by_position:
            found.setdefault((point.first, point.last), []).append(point.bits_per_byte)
    # Positions count from zero, a logarithmic axis from one.
    return _means({math.sqrt((first + 1) * (last + 1)): values for (first, last), values in found.items()})


def by_length(entry: StudyModel, read: Callable[[LengthPoint], float | None]) -> Curve:
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


def _panel(view: View, curves: dict[str, Curve], name: str, heading: str, x_label: str,
           trained: Sequence[int] | None) -> Markup:
    def write(value: float) -> str:
        return fixed(value, 3)

    box = PlotBox()
    x = _lengths(curves, box)
    y = _height([value for curve in curves.values() for _, value in curve], box)
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


def _lengths(curves: Mapping[str, Curve], box: PlotBox) -> LogarithmicAxis | None:
    """The axis of positions or lengths, in tokens."""
    return powers_of_two([round(place) for curve in curves.values() for place, _ in curve], *box.x,
                         lambda value: integer(round(value)))


def _height(values: Iterable[float], box: PlotBox) -> Axis | None:
    """Linear unless the largest is several times the smallest."""
    found = list(values)
    if found and min(found) > 0 and max(found) / min(found) > 4:
        return logarithmic(found, *box.y, brief(significant), count=6)
    return linear(found, *box.y, count=6)


def _trained_marks(trained: Sequence[int], x: LogarithmicAxis, box: PlotBox) -> Markup:
    places = [x.place(length) for length in trained if x.holds(length)]
    return join([join(
        tag("line", {"class": "trained", "x1": round(at, 1), "x2": round(at, 1), "y1": box.top + 4,
                     "y2": box.height - box.bottom}),
        tag("path", {"class": "trained-mark", "d": f"M{at - 4:.1f} {box.top - 4:.1f}h8l-4 7z"})) for at in places])


def _series(view: View, entry: StudyModel, curve: Curve, x: Axis, y: Axis, write: Callable[[float], str],
            behind: Markup | None = None) -> Series:
    style = view.styles[entry.name]
    inside = [(place, value) for place, value in curve if x.holds(round(place)) and y.holds(value)]
    hover = tuple(Hover(x.place(max(x.low, min(place, x.high))), y.place(value), f"{integer(round(place))} tokens",
                        write(value))
                  for place, value in inside)
    path = [(point.x, point.y) for point in hover]
    drawing = join(behind or "", line(path, {"class": "mean", "stroke-dasharray": style.dash or None}),
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
        lost = {point.context for run in entry.finished for point in run.by_length if point.bits_per_byte == math.inf}
        rows.append([view.name(entry), *("not finite" if length in lost else
                                         _both(bits.get(length), perplexity.get(length)) for length in lengths)])
    return table("Bits per byte (perplexity per token) by length of the evaluation window, tokens", columns, rows,
                 name="length-numbers")


def _both(bits: float | None, perplexity: float | None) -> str:
    if not known(bits):
        return "out of reach"
    return f"{fixed(bits, 3)} ({significant(perplexity)})" if perplexity is not None else fixed(bits, 3)


def decoding(view: View) -> Markup:
    """Two charts, both axes logarithmic, and their numbers."""
    return join(
        _decoding_panel(view, "decode-seconds", "Time per decoded token", lambda point: point.seconds, duration),
        _decoding_panel(view, "decode-state", "State of one row", lambda point: float(point.state_bytes), octets))


def cost_lead(view: View) -> Markup:
    """Whose state grows with the context, and whose does not."""
    grows: list[Markup] = []
    level: list[Markup] = []
    for entry in view.result.entries:
        sizes = {point.state_bytes for point in entry.decode}
        if len(entry.decode) > 1:
            (grows if len(sizes) > 1 else level).append(view.name(entry))
    parts = [join("the state of ", listed(names), f" {verb}") for names, verb in (
        (grows, "grows with the context"), (level, "stays level")) if names]
    rest = join(" When decoding, ", listed(parts), ".") if parts else Markup("")
    return join("Decoding one row behind a context, and training.", rest)


def decoding_numbers(view: View) -> Markup:
    """The numbers of both charts, folded; nothing when nothing was measured."""
    contexts = sorted({point.context for entry in view.result.entries for point in entry.decode})
    if not contexts:
        return Markup("")
    columns = [Column("Model", number=False), *(Column(integer(context)) for context in contexts)]
    rows = []
    for entry in view.result.entries:
        found = {point.context: f"{_timed(point)}, {octets(point.state_bytes)}" for point in entry.decode}
        rows.append([view.name(entry), *(found.get(context, "\u2013") for context in contexts)])
    return folded("Decoding: the numbers", table(
        "Median time per token (from the lowest lower quartile of the runs to their highest upper one) and bytes of "
        "state of one row, behind so many tokens", columns, rows,
        name="decode-numbers"))


def _timed(point: DecodePoint) -> str:
    """The time of a token with its spread, where that was kept."""
    if point.low is None or point.high is None:
        return duration(point.seconds)
    return f"{duration(point.seconds)} ({duration(point.low)} to {duration(point.high)})"


def _spread(entry: StudyModel, x: Axis, y: Axis) -> Markup:
    """Upright lines from the quickest to the slowest of what was timed."""
    return join([whisker(x.place(point.context), y.place(max(y.low, point.low)), y.place(min(y.high, point.high)))
                 for point in entry.decode if point.low is not None and point.high is not None
                 and point.low > 0 and x.holds(point.context)])


def _decoding_panel(view: View, name: str, heading: str, read: Callable[[DecodePoint], float | None],
           write: Callable[[float], str]) -> Markup:
    box = PlotBox(left=56)
    curves = {entry.name: sorted((float(point.context), value) for point in entry.decode
                                 if (value := read(point)) is not None) for entry in view.result.entries}
    x = _lengths(curves, box)
    timed = [bound for entry in view.result.entries for point in entry.decode for bound in (point.low, point.high)
             if name == "decode-seconds"]
    y = logarithmic([*(value for curve in curves.values() for _, value in curve), *timed], *box.y, brief(write),
                    count=6, at_least=2.0)
    if x is None or y is None:
        return Markup("")
    spread = name == "decode-seconds"
    series = [_series(view, entry, curves[entry.name], x, y, write,
                      _spread(entry, x, y) if spread else None) for entry in view.result.entries]
    shown = [each for each in series if each.points]
    spoken = "; ".join(f"{each.name}: {each.points[0].value} to {each.points[-1].value}" for each in shown)
    absent = [each.name for each in series if not each.points]
    return draw(Panel(name, heading, f"{heading} against context", f"Both axes logarithmic. {spoken}.", x, y,
                      "context, tokens", heading, shown, box, note=f"not drawn (none or zero): {', '.join(absent)}"
                      if absent else "against context, both axes logarithmic"))


def dots(view: View) -> Markup:
    """Tokens a second and memory; counting is too fast for the scale of training, and its speed is in the table."""
    trained = [entry for entry in view.ranked if entry.trainable]
    speed = _dots_chart(view, trained, "Training speed",
                        "tokens a second, median of the runs; lines: slowest to fastest run",
                        lambda run: run.tokens_per_second, si, "dots-speed")
    memory = _dots_chart(view, view.ranked, "Peak memory of training", "median of the runs",
                         lambda run: float(run.peak_memory_bytes), octets, "dots-memory")
    return tag("div", {"class": "stack"}, speed, memory) if speed or memory else Markup("")


def _dots_chart(view: View, entries: Sequence[StudyModel], title: str, note: str, read: Callable[[RunResult], float],
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
    body = [_dots_row(view, model, view.styles[model], axis, (low, middle, high), write) for model, middle, low,
            high in rows]
    head = tag("tr", None, tag("th", {"scope": "col"}, "Model"),
               tag("td", {"class": "strip-cell"}, scale(axis, title, f"{note}. {spoken}.", name)),
               tag("th", {"scope": "col", "class": "number"}, "Median"))
    return tag("div", {"class": "panel"}, tag("table", {"class": "strips"},
               tag("caption", None, tag("strong", None, title), " ", tag("span", {"class": "panel-note"}, note)),
               tag("thead", None, head), tag("tbody", None, body)))


def _dots_row(view: View, model: str, style: ModelStyle, axis: Axis, values: Sequence[float],
              write: Callable[[float], str]) -> Markup:
    low, middle, high = values
    stem = rule(axis, axis.low, middle, "stem")
    ends = rule(axis, low, high, "outer") if not math.isclose(low, high) else Markup("")
    return tag("tr", {"data-model": str(style.index)}, tag("th", {"scope": "row"}, view.key(model, 16)),
               tag("td", {"class": f"strip-cell {style.colour}"},
                   strip(axis, stem, ends, at(axis, middle, marker(0, 0, style, 4)))),
               tag("td", {"class": "number"}, write(middle)))

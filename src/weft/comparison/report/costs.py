"""What a token costs: time and state of decoding against context, speed and memory of training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from weft.comparison.report.view import View
from weft.comparison.results import DecodePoint, Entry, RunResult
from weft.drawing.axes import Axis, linear, logarithmic, powers_of_two
from weft.drawing.marks import Label, Style, line, marker
from weft.drawing.markup import Markup, join, listed, tag
from weft.drawing.numbers import brief, duration, integer, known, octets, si
from weft.drawing.panel import Box, Hover, Panel, Series, draw
from weft.drawing.table import ROW, Column, at, folded, rule, scale, strip, table


def decoding(view: View) -> Markup:
    """Two charts, both axes logarithmic, and their numbers."""
    charts = [_panel(view, "decode-seconds", "Time per decoded token", lambda point: point.seconds, duration),
              _panel(view, "decode-state", "State of one row", lambda point: float(point.state_bytes), octets)]
    drawn = [chart for chart in charts if chart]
    if not drawn:
        return Markup("")
    return join(drawn)


def lead(view: View) -> Markup:
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
        found = {point.context: f"{duration(point.seconds)}, {octets(point.state_bytes)}" for point in entry.decode}
        rows.append([view.name(entry), *(found.get(context, "\u2013") for context in contexts)])
    return folded("Decoding: the numbers", table(
        "Median time per token and bytes of state of one row, behind so many tokens", columns, rows,
        name="decode-numbers"))


def _panel(view: View, name: str, heading: str, read: Callable[[DecodePoint], float | None],
           write: Callable[[float], str]) -> Markup:
    box = Box(left=56)
    points = [(point.context, read(point)) for entry in view.result.entries for point in entry.decode]
    x = powers_of_two([context for context, value in points if value is not None], *box.x,
                      lambda value: integer(round(value)))
    y = logarithmic([value for _, value in points], *box.y, brief(write), count=6, at_least=2.0)
    if x is None or y is None:
        return Markup("")
    series = [_series(view, entry, x, y, read, write) for entry in view.result.entries]
    shown = [each for each in series if each.points]
    spoken = "; ".join(f"{each.name}: {each.points[0].value} to {each.points[-1].value}" for each in shown)
    absent = [each.name for each in series if not each.points]
    return draw(Panel(name, heading, f"{heading} against context", f"Both axes logarithmic. {spoken}.", x, y,
                      "context, tokens", heading, shown, box, note=_absent(absent)))


def _absent(names: Sequence[str]) -> str:
    return f"not drawn (none or zero): {', '.join(names)}" if names else "against context, both axes logarithmic"


def _series(view: View, entry: Entry, x: Axis, y: Axis, read: Callable[[DecodePoint], float | None],
            write: Callable[[float], str]) -> Series:
    style = view.styles[entry.name]
    hover = []
    for point in sorted(entry.decode, key=lambda each: each.context):
        value = read(point)
        if value is not None and y.holds(value) and x.holds(point.context):
            hover.append(Hover(x.place(point.context), y.place(value), f"{integer(point.context)} tokens",
                               write(value)))
    path = [(point.x, point.y) for point in hover]
    drawing = join(line(path, {"class": "mean", "stroke-dasharray": style.dash or None}),
                   [marker(*place, style, 2.4) for place in path])
    return Series(entry.name, style, drawing, tuple(hover), Label(path[-1][1], entry.name, style) if path else None)


def dots(view: View) -> Markup:
    """Tokens a second and memory; counting is too fast for the scale of training, and its speed is in the table."""
    trained = [entry for entry in view.ranked if entry.trainable]
    speed = _dots_chart(view, trained, "Training speed",
                        "tokens a second, median of the runs; lines: slowest to fastest run",
                        lambda run: run.tokens_per_second, si, "dots-speed")
    memory = _dots_chart(view, view.ranked, "Peak memory of training", "median of the runs",
                         lambda run: float(run.peak_memory_bytes), octets, "dots-memory")
    return tag("div", {"class": "stack"}, speed, memory) if speed or memory else Markup("")


def _dots_chart(view: View, entries: Sequence[Entry], title: str, note: str, read: Callable[[RunResult], float],
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


def _dots_row(view: View, model: str, style: Style, axis: Axis, values: Sequence[float],
              write: Callable[[float], str]) -> Markup:
    low, middle, high = values
    stem = rule(axis, axis.low, middle, ROW / 2, "stem")
    ends = rule(axis, low, high, ROW / 2, "outer") if not math.isclose(low, high) else Markup("")
    return tag("tr", {"data-model": str(style.index)}, tag("th", {"scope": "row"}, view.key(model, 16)),
               tag("td", {"class": f"strip-cell {style.colour}"},
                   strip(axis, stem, ends, at(axis, middle, marker(0, 0, style, 4)))),
               tag("td", {"class": "number"}, write(middle)))

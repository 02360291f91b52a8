"""How the models were trained: their loss curves, and the search for a learning rate.

Of a curve every run is a thin line and the mean of a model's runs a bold one. Of the search every trial is drawn, the
chosen ones ringed, those that failed crossed out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from weft.comparison.report.view import View
from weft.comparison.results import CurvePoint, StudyModel, Trial
from weft.drawing.axes import Axis, linear, logarithmic
from weft.drawing.marks import Label, ModelStyle, Point, line, marker, spots
from weft.drawing.markup import Markup, join, listed, tag
from weft.drawing.numbers import brief, duration, fixed, integer, known, learning_rate, si
from weft.drawing.panel import SMALL, Hover, Panel, PlotBox, Series, draw
from weft.drawing.tables import Column, folded, table

MOST_POINTS = 48
"""Of a drawn line: more cannot be seen on a chart 10 cm wide."""


@final
@dataclass(frozen=True)
class Currency:
    """The quantity that a curve is drawn against."""

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


def curves_lead(view: View) -> Markup:
    """The sentence that says what the lines are."""
    counted_too = any(not entry.trainable and entry.finished for entry in view.result.entries)
    level = (" A model that is counted, not trained, has one figure: it begins where the model has read its tokens, "
             "and stays level from there." if counted_too else "")
    thin = (" Thin lines are single runs, bold ones the mean of a model's runs." if view.result.seeds > 1 else "")
    return join("Bits per byte on a part of the test text, so that curves end near the figures of the table and not on "
                f"them.{thin}{level}")


def each_curve(entry: StudyModel) -> list[tuple[CurvePoint, ...]]:
    """The curves of all runs, those that failed included."""
    return [run.curve for run in entry.runs]


def drawable(curve: Sequence[CurvePoint]) -> bool:
    """Whether any of its points is finite."""
    return any(math.isfinite(point.bits_per_byte) for point in curve)


def mean_curve(entry: StudyModel) -> tuple[CurvePoint, ...]:
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


def counted(entry: StudyModel) -> bool:
    """Whether the model has no course to draw: it was counted, or validated only once."""
    return not entry.trainable or max((len(curve) for curve in each_curve(entry)), default=0) < 2


def _panel(view: View, drawn: Sequence[StudyModel], currency: Currency) -> Markup:
    box = PlotBox()
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
    ends = "; ".join(f"{entry.name} ends at {fixed(curve[-1].bits_per_byte, 3)}" for entry in drawn
                     if (curve := mean_curve(entry)))
    return draw(Panel(
        f"curve-{currency.name}", f"Bits per byte {currency.heading}",
        f"Bits per byte of the test text {currency.heading}",
        f"Both axes logarithmic. {ends or 'No run finished'}. The numbers are in the table below the charts.",
        x, y, currency.label, "bits per byte", series, box,
        note=f"not drawn, as counting has no such cost: {', '.join(absent)}" if absent else ""))


def _series(entry: StudyModel, view: View, currency: Currency, x: Axis, y: Axis) -> Series:
    style = view.styles[entry.name]
    if counted(entry):
        return _level(entry, view, currency, x, y)
    seeds = [_places(curve, currency, x, y) for curve in each_curve(entry) if drawable(curve)]
    mean = [point for point in thinned(mean_curve(entry)) if x.holds(currency.read(point))
            and y.holds(point.bits_per_byte)]
    thin = [line(points, {"class": "seed"}, digits=0) for points in seeds]
    hover = tuple(Hover(x.place(currency.read(point)), y.place(point.bits_per_byte),
                        currency.write(currency.read(point)),
                        fixed(point.bits_per_byte, 3)) for point in mean)
    if not hover:
        last = next((points[-1] for points in seeds if points), None)
        stopped = Label(last[1], f"{entry.name} \u2717", style) if last else None
        return Series(entry.name, style, join(thin), (), stopped)
    bold = line([(point.x, point.y) for point in hover], {"class": "mean", "stroke-dasharray": style.dash or None})
    end = marker(hover[-1].x, hover[-1].y, style)
    return Series(entry.name, style, join(thin, bold, end), hover, Label(hover[-1].y, entry.name, style))


def _places(curve: Sequence[CurvePoint], currency: Currency, x: Axis, y: Axis) -> list[Point]:
    return [(x.place(currency.read(point)), y.place(point.bits_per_byte)) for point in thinned(curve)
            if x.holds(currency.read(point)) and y.holds(point.bits_per_byte)]


def _level(entry: StudyModel, view: View, currency: Currency, x: Axis, y: Axis) -> Series:
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


def _numbers(view: View, drawn: Sequence[StudyModel]) -> Markup:
    columns = [Column("Model", number=False), Column("Step"), Column("Tokens"), Column("FLOPs"), Column("Time"),
               Column("Bits per byte")]
    rows = [[view.name(entry), integer(point.step), si(point.tokens), si(point.flops), duration(point.seconds),
             fixed(point.bits_per_byte, 3)] for entry in drawn for point in thinned(mean_curve(entry), 6)]
    return table("Means over the finished runs at some of the checkpoints", columns, rows, name="curve-numbers")


def rates(view: View) -> Markup:
    """A small chart for each model that was tuned; the learning rates are those of all, the heights each its own."""
    tuned = [entry for entry in view.result.entries if trials_of(entry)]
    if not tuned:
        return tag("p", {"class": "none"}, "No learning rates were tried.")
    rates = [trial.lr for entry in tuned for trial in trials_of(entry)]
    x = logarithmic(rates, *SMALL.x, learning_rate, count=4, margin=0.08)
    assert x is not None  # Learning rates are above zero.
    return tag("div", {"class": "panels minis"}, [_rates_panel(view, entry, x) for entry in tuned])


def rates_lead(view: View) -> Markup:
    """How many trials there were, and what the marks mean."""
    runs = [run for entry in view.result.entries for run in entry.runs if run.trials]
    if not runs:
        return Markup("")
    counts = sorted({len({trial.lr for trial in run.trials}) for run in runs})
    many = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    lines = " A line is one run's search." if view.result.seeds > 1 else ""
    return join(f"Every run of a trained model chose its own learning rate among {many}, by trials with its own "
                f"seeds.{lines} A ring marks a rate that was chosen, a cross a trial that did not finish. Heights are "
                "each chart's own.")


def trials_of(entry: StudyModel) -> list[Trial]:
    """The trials of all runs."""
    return [trial for run in entry.runs for trial in run.trials]


def remark(entry: StudyModel) -> Markup:
    """The chosen rates, and whether a better one may lie outside those tried."""
    if not entry.rates:
        return join("none chosen")
    if len(entry.rates) == 1:
        chosen = f"chosen: {learning_rate(entry.rates[0])}"
    else:
        counts = [(rate, sum(run.lr == rate for run in entry.finished)) for rate in entry.rates]
        chosen = "chosen: " + ", ".join(f"{learning_rate(rate)} ({count}\u00d7)" for rate, count in counts)
    return join(f"{chosen}, ", tag("span", {"class": "flag"}, "at the edge")) if entry.edge else join(chosen)


def _rates_panel(view: View, entry: StudyModel, x: Axis) -> Markup:
    style, (bottom, top) = view.styles[entry.name], SMALL.y
    y = linear([trial.bits_per_byte for trial in trials_of(entry)], bottom, top, count=4) or linear(
        [0.0, 1.0], bottom, top)
    assert y is not None
    drawings, hover, spoken = [], [], []
    for run in entry.runs:
        trials = sorted((trial for trial in run.trials if x.holds(trial.lr)), key=lambda trial: trial.lr)
        drawings.append(_search(run.lr, trials, style, x, y))
        hover += [Hover(x.place(trial.lr), y.place(trial.bits_per_byte or 0.0),
                        f"{learning_rate(trial.lr)}, run {run.index + 1}", fixed(trial.bits_per_byte, 3))
                  for trial in trials if y.holds(trial.bits_per_byte)]
        spoken += [f"run {run.index + 1}, {learning_rate(trial.lr)}: {outcome(trial)}" for trial in trials]
    return draw(Panel(f"bowl-{style.index}", view.key(entry, 20), f"Learning rates tried for {entry.name}",
                      f"Bits per byte of the tuning text by learning rate. {'; '.join(spoken)}.", x, y, "learning rate",
                      "bits per byte", [Series(entry.name, style, join(drawings),
                                               tuple(sorted(hover, key=lambda each: each.x)))], SMALL,
                      note=remark(entry)))


def _search(chosen: float | None, trials: Sequence[Trial], style: ModelStyle, x: Axis, y: Axis) -> Markup:
    """One run's: its line, its choice ringed, and what did not finish."""
    done = [trial for trial in trials if y.holds(trial.bits_per_byte)]
    path = [(x.place(trial.lr), y.place(trial.bits_per_byte or 0.0)) for trial in done]
    rings = [tag("circle", {"class": "ring", "cx": round(at[0], 2), "cy": round(at[1], 2), "r": 7})
             for trial, at in zip(done, path, strict=True) if trial.lr == chosen]
    lost = [tag("path", {"class": "lost", "d": f"M{x.place(trial.lr) - 4:.1f} {y.end + 2:.1f}l8 8m0 -8l-8 8",
                         "fill": "none"}) for trial in trials if trial not in done]
    return join(line(path, {"class": "mean search", "stroke-dasharray": style.dash or None}),
                spots(path) if path else "", rings, lost)


def outcome(trial: Trial) -> str:
    """Bits per byte, or what became of the trial."""
    if known(trial.bits_per_byte):
        return fixed(trial.bits_per_byte, 3)
    return f"{trial.status} ({trial.note})" if trial.note else trial.status

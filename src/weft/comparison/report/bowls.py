"""The search for a learning rate: every trial of every model, the chosen one ringed, those that failed crossed out."""

from __future__ import annotations

from collections.abc import Sequence

from weft.comparison.report.axes import Axis, linear, logarithmic
from weft.comparison.report.marks import Point, line, marker
from weft.comparison.report.markup import Markup, join, tag
from weft.comparison.report.numbers import duration, fixed, known, learning_rate
from weft.comparison.report.panel import SMALL, Hover, Panel, Series, draw
from weft.comparison.report.table import Column, folded, table
from weft.comparison.report.view import View
from weft.comparison.results import Entry, Trial


def bowls(view: View) -> Markup:
    """A small chart for each model that was tuned; the learning rates are those of all, the heights each its own."""
    tuned = [entry for entry in view.result.entries if trials_of(entry)]
    if not tuned:
        return tag("p", {"class": "none"}, "No learning rates were tried.")
    rates = [trial.lr for entry in tuned for trial in trials_of(entry)]
    x = logarithmic(rates, *SMALL.x, learning_rate, count=4, margin=0.08)
    assert x is not None  # Learning rates are above zero.
    return join(tag("div", {"class": "panels minis"}, [_panel(view, entry, x) for entry in tuned]),
                folded("The numbers of these charts", _numbers(view, tuned)))


def trials_of(entry: Entry) -> tuple[Trial, ...]:
    """Of all attempts."""
    return tuple(trial for run in entry.runs for trial in run.trials)


def chosen_in(entry: Entry) -> set[tuple[float, float | None]]:
    """Learning rate and figure of the trials that attempts chose."""
    return {(trial.lr, trial.bits_per_byte) for run in entry.runs for trial in run.trials if trial.lr == run.lr}


def remark(entry: Entry) -> Markup:
    """The chosen rates, and whether a better one may lie outside those tried."""
    rates = ", ".join(learning_rate(lr) for lr in entry.rates)
    chosen = f"chosen: {rates}" if rates else "none chosen"
    if not entry.edge:
        return join(chosen)
    return join(f"{chosen}, ", tag("span", {"class": "flag"}, "at the edge"))


def _panel(view: View, entry: Entry, x: Axis) -> Markup:
    style = view.styles[entry.name]
    y = linear([trial.bits_per_byte for trial in trials_of(entry)], *SMALL.y, count=4)
    bottom, top = SMALL.y
    y = y or linear([0.0, 1.0], bottom, top)
    assert y is not None
    trials = sorted((trial for trial in trials_of(entry) if x.holds(trial.lr)), key=lambda trial: trial.lr)
    done = [trial for trial in trials if y.holds(trial.bits_per_byte)]
    hover = tuple(Hover(x.place(trial.lr), y.place(trial.bits_per_byte or 0.0),
                        f"learning rate {learning_rate(trial.lr)}",
                        fixed(trial.bits_per_byte, 3)) for trial in done)
    path = [(point.x, point.y) for point in hover]
    lost = [_lost(x.place(trial.lr), top) for trial in trials if trial not in done]
    ring = [_ring((point.x, point.y)) for trial, point in zip(done, hover, strict=True)
            if (trial.lr, trial.bits_per_byte) in chosen_in(entry)]
    drawing = join(line(path, {"class": "mean", "stroke-dasharray": style.dash or None}),
                   [marker(*place, style, 3) for place in path], ring, lost)
    spoken = "; ".join(f"{learning_rate(trial.lr)}: {outcome(trial)}" for trial in trials)
    return draw(Panel(f"bowl-{style.index}", view.key(entry, 20), f"Learning rates tried for {entry.name}",
                      f"Bits per byte of the tuning text by learning rate. {spoken}.", x, y, "learning rate",
                      "bits per byte", [Series(entry.name, style, drawing, hover)], SMALL, note=remark(entry)))


def outcome(trial: Trial) -> str:
    """Bits per byte, or what became of the trial."""
    if known(trial.bits_per_byte):
        return fixed(trial.bits_per_byte, 3)
    return f"{trial.status} ({trial.note})" if trial.note else trial.status


def _ring(place: Point) -> Markup:
    return tag("circle", {"class": "ring", "cx": round(place[0], 2), "cy": round(place[1], 2), "r": 7})


def _lost(x: float, top: float) -> Markup:
    return tag("path", {"class": "lost", "d": f"M{x - 4:.1f} {top + 2:.1f}l8 8m0 -8l-8 8", "fill": "none"})


def _numbers(view: View, tuned: Sequence[Entry]) -> Markup:
    columns = [Column("Model", number=False), Column("Learning rate"), Column("Bits per byte"), Column("Time"),
               Column("", number=False)]
    rows = [[view.name(entry), learning_rate(trial.lr), outcome(trial), duration(trial.seconds),
             "chosen" if (trial.lr, trial.bits_per_byte) in chosen_in(entry) else ""]
            for entry in tuned for trial in trials_of(entry)]
    return table("Every trial of the search for a learning rate", columns, rows, name="bowl-numbers")

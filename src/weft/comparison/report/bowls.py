"""The search for a learning rate: every trial of every run, the chosen ones ringed, those that failed crossed out."""

from __future__ import annotations

from collections.abc import Sequence

from weft.comparison.report.view import View
from weft.comparison.results import Entry, RunResult, Trial
from weft.drawing.axes import Axis, linear, logarithmic
from weft.drawing.marks import Point, Style, line, marker
from weft.drawing.markup import Markup, join, tag
from weft.drawing.numbers import duration, fixed, known, learning_rate
from weft.drawing.panel import SMALL, Hover, Panel, Series, draw
from weft.drawing.table import Column, folded, table


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


def lead(view: View) -> Markup:
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


def trials_of(entry: Entry) -> list[Trial]:
    """Of all runs."""
    return [trial for run in entry.runs for trial in run.trials]


def remark(entry: Entry) -> Markup:
    """The chosen rates, and whether a better one may lie outside those tried."""
    if not entry.rates:
        return join("none chosen")
    if len(entry.rates) == 1:
        chosen = f"chosen: {learning_rate(entry.rates[0])}"
    else:
        counts = [(rate, sum(run.lr == rate for run in entry.finished)) for rate in entry.rates]
        chosen = "chosen: " + ", ".join(f"{learning_rate(rate)} ({count}\u00d7)" for rate, count in counts)
    return join(f"{chosen}, ", tag("span", {"class": "flag"}, "at the edge")) if entry.edge else join(chosen)


def _panel(view: View, entry: Entry, x: Axis) -> Markup:
    style, (bottom, top) = view.styles[entry.name], SMALL.y
    y = linear([trial.bits_per_byte for trial in trials_of(entry)], bottom, top, count=4) or linear(
        [0.0, 1.0], bottom, top)
    assert y is not None
    drawings, hover, spoken = [], [], []
    for run in entry.runs:
        trials = sorted((trial for trial in run.trials if x.holds(trial.lr)), key=lambda trial: trial.lr)
        drawings.append(_search(run.lr, trials, style, x, y))
        hover += [_hover(run, trial, x, y) for trial in trials if y.holds(trial.bits_per_byte)]
        spoken += [f"run {run.index + 1}, {learning_rate(trial.lr)}: {outcome(trial)}" for trial in trials]
    return draw(Panel(f"bowl-{style.index}", view.key(entry, 20), f"Learning rates tried for {entry.name}",
                      f"Bits per byte of the tuning text by learning rate. {'; '.join(spoken)}.", x, y, "learning rate",
                      "bits per byte", [Series(entry.name, style, join(drawings),
                                               tuple(sorted(hover, key=lambda each: each.x)))], SMALL,
                      note=remark(entry)))


def _hover(run: RunResult, trial: Trial, x: Axis, y: Axis) -> Hover:
    return Hover(x.place(trial.lr), y.place(trial.bits_per_byte or 0.0),
                 f"learning rate {learning_rate(trial.lr)}, run {run.index + 1}", fixed(trial.bits_per_byte, 3))


def _search(chosen: float | None, trials: Sequence[Trial], style: Style, x: Axis, y: Axis) -> Markup:
    """One run's: its line, its choice ringed, and what did not finish."""
    done = [trial for trial in trials if y.holds(trial.bits_per_byte)]
    path = [(x.place(trial.lr), y.place(trial.bits_per_byte or 0.0)) for trial in done]
    rings = [_ring(place) for trial, place in zip(done, path, strict=True) if trial.lr == chosen]
    lost = [_lost(x.place(trial.lr), y.end) for trial in trials if trial not in done]
    return join(line(path, {"class": "mean search", "stroke-dasharray": style.dash or None}),
                [marker(*place, style, 2.4) for place in path], rings, lost)


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
    columns = [Column("Model", number=False), Column("Run"), Column("Learning rate"), Column("Bits per byte"),
               Column("Time"), Column("", number=False)]
    rows = [[view.name(entry), str(run.index + 1), learning_rate(trial.lr), outcome(trial), duration(trial.seconds),
             _choice(run, trial)] for entry in tuned for run in entry.runs for trial in run.trials]
    return table("Every trial of the search for a learning rate", columns, rows, name="bowl-numbers")


def _choice(run: RunResult, trial: Trial) -> str:
    if trial.lr != run.lr:
        return ""
    return "chosen, at the edge" if run.edge else "chosen"

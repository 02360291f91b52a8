"""Learning curves beyond the budget, where a power law stands the test that `weft.comparison.extension` makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from weft.comparison.extension import FEWEST, FIRST, FURTHEST, RESAMPLES, Extension, extended
from weft.comparison.report.training import mean_curve, thinned
from weft.comparison.report.view import View
from weft.comparison.results import StudyModel
from weft.drawing.axes import Axis, logarithmic
from weft.drawing.marks import Label, line, marker, path_data
from weft.drawing.markup import Markup, join, listed, tag
from weft.drawing.numbers import brief, confidence, fixed, percent, si, significant
from weft.drawing.panel import Hover, Panel, PlotBox, Series, draw

Extended: TypeAlias = tuple[StudyModel, Extension]


def beyond(view: View) -> Markup:
    """The chart of those curves that a law fits, and what became of the others."""
    found = [(entry, extended(entry, view.result.level)) for entry in view.ranked if entry.trainable and entry.finished]
    if not found:
        return Markup("")
    fits = [each for each in found if each[1].verdict == "fits"]
    chart = _panel(view, fits) if fits else Markup("")
    sentences = [*_fits(view, fits), *_missed(view, found), *_edges(view, found), *_few(view, found)]
    return tag("div", {"class": "beyond"}, chart, tag("div", {"class": "beyond-words"}, tag(
        "h4", None, "Beyond the budget"), tag("ul", {"class": "small"}, [tag("li", None, each) for each in sentences]),
        tag("p", {"class": "small"}, _method(view)) if fits or len(_few(view, found)) == 0 else ""))


def _method(view: View) -> str:
    return (f"Method: bits = floor + scale \u00b7 (tokens / budget)^\u2212exponent by least squares over the "
            f"checkpoints; intervals at {confidence(view.result.level)} from {RESAMPLES} resamples of the runs "
            "and of what scatters around each run\u2019s law, expanded for few runs. A law is shown only if the one "
            f"fitted to the first {percent(FIRST)} of the budget contains the end that was measured. It extends "
            "the curve as it is: where the schedule has let the learning rate fall by then, a run that is planned "
            "longer holds the rate up for longer and can end elsewhere; only such a run shows it.")


def _fits(view: View, fits: Sequence[Extended]) -> list[Markup]:
    said = []
    for entry, each in fits:
        last = each.points[-1]
        said.append(join(view.name(entry), f" tends to {fixed(last.mean, 3)} ({fixed(last.low, 3)} to "
                         f"{fixed(last.high, 3)}) at {FURTHEST:g} times the budget; exponent "
                         f"{significant(each.exponent or 0.0, 2)}, floor {fixed(each.floor, 2)}."))
    return said


def _missed(view: View, found: Sequence[Extended]) -> list[Markup]:
    return [join(view.name(entry), f" is not extended: by the law of its first {percent(FIRST)} it would have ended "
                 f"at {fixed(each.said.mean, 3)} ({fixed(each.said.low, 3)} to {fixed(each.said.high, 3)}), and it "
                 f"ended at {fixed(each.ended, 3)}.") for entry, each in found
            if each.verdict == "missed" and each.said is not None]


def _edges(view: View, found: Sequence[Extended]) -> list[Markup]:
    names = [view.name(entry) for entry, each in found if each.verdict == "edge"]
    return [join("No power law fits ", listed(names, "or"), ": the best exponent is the last that was tried.")
            ] if names else []


def _few(view: View, found: Sequence[Extended]) -> list[Markup]:
    names = [view.name(entry) for entry, each in found if each.verdict == "few"]
    return [join(listed(names), " is not extended" if len(names) == 1 else " are not extended",
                 f": a law is tested from {FEWEST} checkpoints in the first {percent(FIRST)} of the budget on "
                 "(measure.curve_points of the study).")] if names else []


def _panel(view: View, fits: Sequence[Extended]) -> Markup:
    box = PlotBox()
    bounds = [bound for _, each in fits for point in each.points for bound in (point.low, point.high)]
    known = [point for entry, _ in fits for point in mean_curve(entry)]
    x = logarithmic([*(float(point.tokens) for point in known), *(point.tokens for _, each in fits
                                                                  for point in each.points)], *box.x, brief(si))
    y = logarithmic([*(point.bits_per_byte for point in known), *bounds], *box.y, lambda value: f"{value:.3g}", count=6)
    if x is None or y is None:
        return Markup("")
    series = [_series(view, entry, each, x, y) for entry, each in fits]
    said = "; ".join(f"{entry.name} {fixed(each.points[-1].mean, 3)} ({fixed(each.points[-1].low, 3)} to "
                     f"{fixed(each.points[-1].high, 3)})" for entry, each in fits)
    budget = sorted({each.points[0].tokens for _, each in fits})
    marks = [tag("line", {"class": "trained", "x1": round(x.place(at), 1), "x2": round(x.place(at), 1), "y1": box.top,
                          "y2": box.height - box.bottom}) for at in budget]
    return draw(Panel("beyond", "Bits per byte beyond the budget", "Learning curves extended beyond the budget",
                      f"Both axes logarithmic. At {FURTHEST:g} times the budget: {said}.", x, y, "training tokens",
                      "bits per byte", series, box, join(marks),
                      "right of the dotted line: the law, with its interval"))


def _series(view: View, entry: StudyModel, each: Extension, x: Axis, y: Axis) -> Series:
    style = view.styles[entry.name]
    known = [point for point in thinned(mean_curve(entry)) if x.holds(point.tokens) and y.holds(point.bits_per_byte)]
    path = [(x.place(point.tokens), y.place(point.bits_per_byte)) for point in known]
    law = [(x.place(point.tokens), y.place(point.mean)) for point in each.points]
    around = [*((x.place(point.tokens), y.place(point.high)) for point in each.points),
              *((x.place(point.tokens), y.place(point.low)) for point in reversed(each.points))]
    drawing = join(tag("path", {"class": "band", "d": path_data(around) + "Z"}), line(path, {"class": "mean"}),
                   line(law, {"class": "mean law", "stroke-dasharray": "3 3"}), marker(*path[-1], style))
    hover = [Hover(*place, si(point.tokens), fixed(point.bits_per_byte, 3))
             for place, point in zip(path, known, strict=True)]
    hover += [Hover(*place, f"{si(point.tokens)}, by the law", f"{fixed(point.mean, 3)} [{fixed(point.low, 3)}, "
                    f"{fixed(point.high, 3)}]") for place, point in zip(law[1:], each.points[1:], strict=True)]
    return Series(entry.name, style, drawing, tuple(hover), Label(law[-1][1], entry.name, style))

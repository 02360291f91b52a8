"""The page of a ladder of studies: loss against budget, where the order turns, what a better model saves, and laws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.comparison.ladder_findings import DRAWS, FEWEST_RUNGS, LadderCurve, LadderResult
from weft.comparison.report.page import top, whole_page
from weft.comparison.rungs import in_words
from weft.comparison.statistics import Interval
from weft.comparison.study_result import StudyResult
from weft.drawing.axes import Axis, logarithmic
from weft.drawing.marks import Label, ModelStyle, line, marker, path_data, swatch, swatches
from weft.drawing.markup import Markup, join, listed, tag
from weft.drawing.numbers import brief, confidence, fixed, moment, si
from weft.drawing.panel import Hover, Panel, PlotBox, Series, draw
from weft.drawing.tables import Column, table

BOX = PlotBox(width=760, height=340, left=44, right=130, top=14, bottom=42)


def turns_said(result: LadderResult) -> list[str]:
    """A sentence for each two models whose order turns, and one for those whose order does not."""
    said, turning = list[str](), set[frozenset[str]]()
    for each in result.crossings:
        pair = frozenset((each.before, each.after))
        if each.told:
            turning.add(pair)
            low, high = (bound if bound is None else si(bound) for bound in (each.low, each.high))
            between = f"{low or 'below the first budget'} to {high or 'beyond the last'}"
            said.append(f"From {in_words(result.axis, each.budget)} on ({between}) {each.after} predicts better than "
                        f"{each.before}, which is better below.")
    names = [curve.name for curve in result.curves]
    firm = [f"{first} and {second}" for index, first in enumerate(names) for second in names[index + 1:]
            if frozenset((first, second)) not in turning]
    if firm:
        said.append(f"Not shown to change places within the budgets tried{'' if result.complete else ' so far'}: "
                    f"{'; '.join(firm)}.")
    return said


def savings_said(result: LadderResult) -> list[str]:
    """A sentence for each model that is better at the largest budget, as far as the runs show it."""
    said = list[str]()
    for each in result.speed_ups:
        if each.low > 1:
            least = "" if each.reached else "at least "
            own, whole = (in_words(result.axis, result.amounts[-1] / part) for part in (each.factor, 1.0))
            said.append(f"{each.better} is at {own} what {each.other} is at {whole}: {least}{each.factor:.3g} times "
                        f"fewer ({each.low:.3g} to {each.high:.3g}).")
    return said


def laws_said(result: LadderResult) -> list[str]:
    """A sentence for each model: its law, or why none is shown, and how well the largest budget was told beforehand."""
    said = list[str]()
    for curve in result.curves:
        law, end = curve.law, curve.means[-1] if curve.means else None
        if law.floor is None or law.scale is None or law.exponent is None:
            said.append(f"{curve.name} has no law: {law.refused}.")
        else:
            said.append(f"{curve.name}: {law.floor.mean:.3f} + {law.scale.mean:.3f} ({result.axis} / "
                        f"{si(result.amounts[-1])})^\u2212{law.exponent.mean:.3f}; floor {bounds(law.floor)}, exponent "
                        f"{bounds(law.exponent)}.")
        if law.said is not None and end is not None and result.complete:
            said.append(f"By the law of the smaller budgets {curve.name} would have come to {law.said.mean:.3f} "
                        f"({bounds(law.said)}) at {in_words(result.axis, result.amounts[-1])}; it came to "
                        f"{end.mean:.3f}, {end.mean - law.said.mean:+.3f} from that.")
    return said


def choice_said(result: LadderResult) -> str:
    """A sentence that says which model to take at which budget."""
    groups: list[tuple[tuple[str, ...], float]] = []
    for names, amount in zip(result.best, result.amounts, strict=True):
        if not groups or groups[-1][0] != names:
            groups.append((names, amount))
    parts = [f"from {in_words(result.axis, amount)} on {_listed(names, 'or') or 'none'}" for names, amount in groups]
    return f"Best, as far as each study tells: {'; '.join(parts)}."


def _listed(names: Sequence[str], last: str = "and") -> str:
    return " ".join(str(listed(list(names), last)).split())


def bounds(value: Interval) -> str:
    """The bounds of an interval."""
    return "no interval" if value.low is None or value.high is None else f"{value.low:.3f} to {value.high:.3f}"


def render_ladder(result: LadderResult, found: Sequence[StudyResult]) -> str:
    """The page: one file of HTML that asks nothing of any other but by its links to the studies' own pages."""
    styles = {curve.name: ModelStyle(index) for index, curve in enumerate(result.curves)}
    about = (f"{len(result.curves)} models at {len(result.amounts)} budgets, intervals at "
             f"{confidence(result.confidence)}. {found[0].corpus.name}; {found[0].machine.processor}; "
             f"{moment(result.started)}.")
    sections = [tag("section", {"id": name}, tag("h2", None, heading), content)
                for name, heading, content in _sections(result, found, styles)]
    return whole_page(result.name, swatches(styles.values()), top("Weft studies over budgets", result.name, about),
                      tag("main", {"id": "main"}, sections))


def _sections(result: LadderResult, found: Sequence[StudyResult],
              styles: dict[str, ModelStyle]) -> list[tuple[str, str, Markup]]:
    turns = [*turns_said(result), choice_said(result)]
    chart = join(tag("div", {"class": "ladder"}, _chart(result, styles)), _sentences(turns))
    sections = [("order", "Which model at which budget", chart)]
    if saved := savings_said(result):
        sections.append(("savings", "What a better model saves", _sentences(saved)))
    method = tag("p", {"class": "small"}, _method(result, found))
    sections += [("laws", "Laws", _sentences(laws_said(result))),
                 ("rungs", "The studies", _rungs(result, found, styles)), ("method", "Method", method)]
    return sections


def _sentences(said: Sequence[str]) -> Markup:
    return tag("ul", None, [tag("li", None, each) for each in said])


def _chart(result: LadderResult, styles: dict[str, ModelStyle]) -> Markup:
    known = [mean for curve in result.curves for mean in curve.means if mean is not None]
    x = logarithmic(result.amounts, *BOX.x, brief(si), margin=0.04)
    heights = [value for mean in known for value in (mean.mean, mean.low, mean.high)]
    y = logarithmic(heights, *BOX.y, lambda value: f"{value:.3g}", count=7)
    if x is None or y is None:
        return tag("p", {"class": "none"}, "No run finished.")
    series = [_series(curve, result, styles[curve.name], x, y) for curve in result.curves]
    places = [round(x.place(each.budget), 1) for each in result.crossings if each.told]
    marks = [tag("line", {"class": "turn", "x1": at, "x2": at, "y1": BOX.top, "y2": BOX.height - BOX.bottom})
             for at in places]
    return draw(Panel("ladder", f"Bits per byte against {result.axis}", f"Bits per byte against {result.axis}",
                      f"Both axes logarithmic. {' '.join(turns_said(result))}", x, y, result.axis, "bits per byte",
                      series, BOX, join(marks), "bands: the intervals of the means; dashed: where the order turns"))


def _series(curve: LadderCurve, result: LadderResult, style: ModelStyle, x: Axis, y: Axis) -> Series:
    points = [(x.place(amount), mean) for amount, mean in zip(result.amounts, curve.means, strict=True)
              if mean is not None and y.holds(mean.mean)]
    if not points:
        return Series(curve.name, style, Markup(""))
    path = [(at, y.place(mean.mean)) for at, mean in points]
    sides = [[(at, y.place(min(max(bound, y.low), y.high))) for at, mean in points
              if (bound := getattr(mean, side)) is not None]
             for side in ("high", "low")]
    band = tag("path", {"class": "band", "d": path_data([*sides[0], *reversed(sides[1])]) + "Z"}) if (
        len(sides[0]) == len(sides[1]) == len(points) > 1) else ""
    drawing = join(band, line(path, {"class": "mean", "stroke-dasharray": style.dash or None}),
                   [marker(*place, style) for place in path])
    hover = tuple(Hover(*place, in_words(result.axis, amount), f"{fixed(mean.mean, 3)} ({bounds(mean)})")
                  for place, (amount, mean) in zip(path, _known(curve, result), strict=True))
    return Series(curve.name, style, drawing, hover, Label(path[-1][1], curve.name, style))


def _known(curve: LadderCurve, result: LadderResult) -> list[tuple[float, Interval]]:
    return [(amount, mean) for amount, mean in zip(result.amounts, curve.means, strict=True) if mean is not None]


def _rungs(result: LadderResult, found: Sequence[StudyResult], styles: dict[str, ModelStyle]) -> Markup:
    columns = [Column("Budget", number=False), *(Column(curve.name) for curve in result.curves),
               Column("Best", number=False), Column("Training"), Column("Report", number=False)]
    rows = []
    for place, (folder, study) in enumerate(zip(result.folders, found, strict=True)):
        figures = ["" if (mean := curve.means[place]) is None else fixed(mean.mean, 3) for curve in result.curves]
        seconds = float(np.nansum([run.seconds for entry in study.entries for run in entry.finished]))
        best = join(*[join(" " if index else "", swatch(styles[name]), f" {name}")
                      for index, name in enumerate(result.best[place])])
        rows.append([in_words(result.axis, result.amounts[place]), *figures, best, f"{si(seconds)} s",
                     tag("a", {"href": f"{folder}/report.html"}, "the study")])
    return table("Mean bits per byte at every budget; beside the best stand models that its study does not tell apart "
                 "from it", columns, rows, name="rungs")


def _method(result: LadderResult, found: Sequence[StudyResult]) -> str:
    tuned = any(run.trials for study in found for entry in study.entries for run in entry.runs)
    rates = "is tried anew" if tuned else "is that of its configuration"
    return (
        f"At every budget each model's learning rate {rates}, and its runs are those of an ordinary study, whose "
        f"page is linked. Intervals are from {DRAWS:,} draws of every mean: the mean of the runs plus Student's t with "
        "one degree of freedom fewer than runs, times the standard error; they hold for other runs on the same text. "
        "The order turns where the lines between the means cross; it is said to turn if one model is better at a "
        "budget below and the other at one above, each at half of the level divided by the number of budgets on that "
        "side, for each two models by themselves, and for a ladder that is looked at once. A "
        f"law, floor + scale \u00b7 ({result.axis} / largest)^\u2212exponent, is fitted by least squares from "
        f"{FEWEST_RUNGS} budgets on, and not shown where the points lie further from it than runs lie apart. A "
        "figure that was told of the largest budget was written down before that study was begun.")

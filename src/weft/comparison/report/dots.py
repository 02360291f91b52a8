"""The dot plot that opens the page: every model's figure with its interval, and every run."""

from __future__ import annotations

from weft.comparison.report.ranking import interval_of, worth
from weft.comparison.report.view import View
from weft.comparison.results import StudyModel
from weft.comparison.statistics import Interval
from weft.comparison.verdict import letters
from weft.drawing.axes import Axis, linear
from weft.drawing.marks import marker
from weft.drawing.markup import Markup, join, tag
from weft.drawing.numbers import MISSING, confidence, fixed, known
from weft.drawing.table import at, percentage, rule, scale, strip


def dots(view: View) -> Markup:
    """Best first; nothing where no run finished."""
    found = [(entry, interval) for entry in view.ranked
             if (interval := interval_of(entry, view.result.level)) is not None]
    axis = _axis(found)
    if axis is None:
        return Markup("")
    spoken = "; ".join(f"{entry.name} {fixed(interval.mean, 3)}{_spoken(interval)}" for entry, interval in found)
    chart = scale(axis, "Bits per byte of every model", f"Lower is better. {spoken}.", "dots")
    level = confidence(view.result.level)
    lines = (f"Dots are means, lines {level} intervals over seeds, ticks single runs." if view.result.seeds > 1
             else "One run each, so without intervals over seeds.")
    caption = tag("caption", None, tag("strong", None, "Bits per byte of the test text"), " ",
                  tag("span", {"class": "panel-note"}, f"Lower, to the left, is better. {lines} Models with a common "
                      "letter are not told apart."))
    head = tag("tr", None, tag("th", {"scope": "col"}, "Model"), tag("td", {"class": "strip-cell"}, chart),
               tag("th", {"scope": "col", "class": "number"}, "Bits per byte"), tag("th", {"scope": "col"}, "Letters"))
    rows = [_row(view, entry, interval, axis) for entry, interval in found]
    return tag("table", {"class": "strips dots"}, caption, tag("thead", None, head), tag("tbody", None, rows))


def _axis(found: list[tuple[StudyModel, Interval]]) -> Axis | None:
    """Around the means and the runs, and the intervals that are not many times as wide as these."""
    means = [interval.mean for _, interval in found]
    runs = [run.bits_per_byte for entry, _ in found for run in entry.finished]
    values = [value for value in (*means, *runs) if value is not None and known(value)]
    if not values:
        return None
    reach = max(values) - min(values)
    bounds = [bound for _, interval in found for bound in (interval.low, interval.high)
              if bound is not None and known(bound) and min(values) - reach <= bound <= max(values) + reach]
    return linear([*values, *bounds], 0, 1, count=6, margin=0.04)


def _spoken(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return ""
    return f" ({fixed(interval.low, 3)} to {fixed(interval.high, 3)})"


def _row(view: View, entry: StudyModel, interval: Interval, axis: Axis) -> Markup:
    style = view.styles[entry.name]
    ticks = [_tick(axis, run.bits_per_byte) for run in entry.finished
             if run.bits_per_byte is not None and axis.holds(run.bits_per_byte)]
    stretch = Markup("")
    if interval.low is not None and interval.high is not None and known(interval.low) and known(interval.high):
        low, high = max(axis.low, interval.low), min(axis.high, interval.high)
        stretch = rule(axis, low, high, "inner") if low <= high else stretch
    dot = at(axis, interval.mean, marker(0, 0, style, 5)) if axis.holds(interval.mean) else Markup("")
    return tag("tr", {"data-model": str(style.index)}, tag("th", {"scope": "row"}, view.key(entry, 26)),
               tag("td", {"class": f"strip-cell {style.colour}"}, strip(axis, join(ticks), stretch, dot)),
               tag("td", {"class": "number"}, worth(entry, view, 4)),
               tag("td", {"class": "unbroken"}, " ".join(letters(entry.name, view.result.tied_sets)) or MISSING))


def _tick(axis: Axis, value: float) -> Markup:
    where = percentage(axis, value)
    return tag("line", {"class": "outer", "x1": where, "x2": where, "y1": "19%", "y2": "81%"})

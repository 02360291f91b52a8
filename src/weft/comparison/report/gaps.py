"""How far each model lay behind the best trained one during training, and whether their order changes."""

from __future__ import annotations

from collections.abc import Sequence

from weft.comparison.report.axes import Axis, Linear, linear
from weft.comparison.report.marks import line, marker, whisker
from weft.comparison.report.markup import Child, Markup, join, listed, tag
from weft.comparison.report.numbers import decimals_of, known, percent, signed
from weft.comparison.report.panel import SMALL, Hover, Panel, Series, draw
from weft.comparison.report.table import Column, folded, table
from weft.comparison.report.view import View, half_width
from weft.comparison.results import Difference, Entry, GapPoint


def lead(view: View) -> Markup:
    """What the charts show, with the model that they compare with."""
    base = view.best_trained
    name: Child = "" if base is None else join(view.name(base), ", ")
    best = "the best model" if base is view.best else "the best model that was trained"
    return join("Bits per byte above ", name, best, ", at several shares of the budget, with the interval over seeds. "
                "Above the line is worse; all charts share one scale.")


def gaps(view: View) -> Markup:
    """A small chart for each model, all of one scale."""
    base = view.best_trained
    drawn = [] if base is None else _drawn(view, base)
    if base is None or not drawn:
        return tag("p", {"class": "none"}, "No checkpoints that two models share were recorded.")
    y = _height([gap for difference in drawn for gap in difference.gaps])
    charts = [_panel(view, difference, y, index) for index, difference in enumerate(drawn)]
    shown = {base.name, *(each.first for each in drawn)}
    without = [view.name(entry) for entry in view.ranked if entry.name not in shown]
    rest = tag("p", {"class": "small"}, "No shared checkpoints: ", listed(without), ".") if without else ""
    return join(tag("div", {"class": "panels minis"}, charts), rest,
                folded("The numbers of these charts", _numbers(view, drawn)))


def _drawn(view: View, base: Entry) -> list[Difference]:
    """The other models minus ``base``, where a difference during training is known."""
    found = [view.difference(entry.name, base.name) for entry in view.ranked if entry is not base]
    return [each for each in found if each is not None and any(known(gap.difference.mean) for gap in each.gaps)]


def interval_words(gap: GapPoint) -> str:
    """The difference and its interval, with the digits that the interval allows."""
    decimals = decimals_of(half_width(gap.difference))
    mean = signed(gap.difference.mean, decimals)
    if gap.difference.low is None or gap.difference.high is None:
        return mean
    return f"{mean} [{signed(gap.difference.low, decimals)}, {signed(gap.difference.high, decimals)}]"


def _height(points: Sequence[GapPoint]) -> Axis:
    means = [gap.difference.mean for gap in points]
    bounds = [bound for gap in points for bound in (gap.difference.low, gap.difference.high)]
    reach = max(abs(mean) for mean in means if known(mean))
    # An interval of two runs can be a hundred times as wide as the differences: such whiskers leave the chart.
    near = [bound for bound in bounds if bound is not None and known(bound) and abs(bound) <= max(3 * reach, 1e-6)]
    axis = linear([*means, *near], *SMALL.y, include=(0.0,), count=5)
    assert axis is not None  # A finite mean was asked for above.
    return axis


def _panel(view: View, difference: Difference, y: Axis, index: int) -> Markup:
    x = Linear(0.0, 1.04, *SMALL.x, (0.0, 0.25, 0.5, 0.75, 1.0), lambda share: f"{share:.0%}".removesuffix("%"))
    style = view.styles[difference.first]
    points = [gap for gap in difference.gaps if y.holds(gap.difference.mean) and x.holds(gap.share)]
    hover = tuple(Hover(x.place(gap.share), y.place(gap.difference.mean), f"{percent(gap.share)} of the budget",
                        interval_words(gap)) for gap in points)
    path = [(point.x, point.y) for point in hover]
    drawing = join([_whisker(gap, x, y) for gap in points],
                   line(path, {"class": "mean", "stroke-dasharray": style.dash or None}),
                   [marker(*place, style, 3) for place in path])
    zero = tag("line", {"class": "zero", "x1": x.start, "x2": x.end, "y1": round(y.place(0), 1),
                        "y2": round(y.place(0), 1)})
    order = tag("span", {"class": "flag"}, "order changes") if difference.crosses else "order holds"
    spoken = "; ".join(f"at {percent(gap.share)}: {interval_words(gap)}" for gap in difference.gaps)
    return draw(Panel(f"gap-{index}", view.key(difference.first, 20),
                      f"{difference.first} minus {difference.second} during training",
                      f"Bits per byte above {difference.second}, by share of the budget. {spoken}.", x, y,
                      "% of the budget", "difference", [Series(difference.first, style, drawing, hover)], SMALL, zero,
                      order))


def _whisker(gap: GapPoint, x: Axis, y: Axis) -> Markup:
    low, high = gap.difference.low, gap.difference.high
    if low is None or high is None or not (known(low) and known(high)):
        return Markup("")
    low, high = max(low, y.low), min(high, y.high)
    return whisker(x.place(gap.share), y.place(low), y.place(high))


def _numbers(view: View, drawn: Sequence[Difference]) -> Markup:
    shares = sorted({gap.share for difference in drawn for gap in difference.gaps})
    columns = [Column("Model", number=False), *(Column(f"at {percent(share)}") for share in shares),
               Column("Order changes", number=False)]
    rows = []
    for difference in drawn:
        by_share = {gap.share: interval_words(gap) for gap in difference.gaps}
        rows.append([view.name(difference.first), *(by_share.get(share, "\u2013") for share in shares),
                     "yes" if difference.crosses else "no"])
    return table(join("Bits per byte above ", view.name(drawn[0].second), " at shares of the budget"), columns, rows,
                 name="gap-numbers")

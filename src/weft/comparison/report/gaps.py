"""The order of the models during training: of all of them, of every pair, and how far each lay behind the best."""

from __future__ import annotations

from collections.abc import Sequence

from weft.comparison.findings import order_of, orders, words
from weft.comparison.report.view import View, half_width
from weft.comparison.statistics import Interval
from weft.comparison.study_result import Difference, GapPoint
from weft.comparison.verdict import side_of_zero
from weft.drawing.axes import Axis, LinearAxis, linear
from weft.drawing.marks import line, spots, whisker
from weft.drawing.markup import Child, Markup, join, listed, tag
from weft.drawing.numbers import MISSING, THIN, decimals_of, known, percent, signed
from weft.drawing.panel import SMALL, Hover, Panel, Series, draw
from weft.drawing.tables import Column, folded, table

OPEN_ROWS = 21
"""Of a table that is not folded: the pairs of seven models."""


def lead(view: View) -> Markup:
    """The sentence that says what the charts show, with the model that they compare with."""
    base = view.best_trained
    name: Child = "" if base is None else join(view.name(base), ", ")
    best = "the best model" if base is view.best else "the best model that was trained"
    return join("The order at several shares of the budget, and in the charts bits per byte above ", name, best,
                ", with the interval over seeds. Above the line is worse; all charts share one scale.")


def gaps(view: View) -> Markup:
    """The order of all, a small chart for each model, all of one scale, and every pair."""
    base = view.best_trained
    others = [] if base is None else [view.difference(entry.name, base.name) for entry in view.ranked
                                      if entry is not base]
    drawn = [each for each in others if each is not None and any(known(gap.difference.mean) for gap in each.gaps)]
    if base is None or not drawn:
        return tag("p", {"class": "none"}, "No checkpoints that two models share were recorded.")
    y = _height([gap for difference in drawn for gap in difference.gaps])
    charts = [_panel(view, difference, y, index) for index, difference in enumerate(drawn)]
    shown = {base.name, *(each.first for each in drawn)}
    without = [view.name(entry) for entry in view.ranked if entry.name not in shown]
    rest = tag("p", {"class": "small"}, "No shared checkpoints: ", listed(without), ".") if without else ""
    return join(_orders(view), tag("div", {"class": "panels minis"}, charts), rest, _pairs(view))


def _orders(view: View) -> Markup:
    """The models from best to worst at the shares that all of them have."""
    found = orders(view.result)
    if not found:
        return Markup("")
    columns = [Column("Share of the budget", number=False, wraps=False),
               *(Column(str(place + 1), number=False, wraps=False) for place in range(len(found[0].names)))]
    rows = [[" to ".join(dict.fromkeys((percent(each.first), percent(each.last)))),
             *(view.key(name, 20) for name in each.names)] for each in found]
    return table("Trained models from best to worst in the mean", columns, rows, name="orders")


def _pairs(view: View) -> Markup:
    """Every pair: whether its order holds, and the mean difference at each share."""
    pairs = [each for each in view.ordered_pairs if any(known(gap.difference.mean) for gap in each.gaps)]
    shares = sorted({gap.share for pair in pairs for gap in pair.gaps})[::-2][::-1]  # every second, the last among them
    columns = [Column("Pair, first minus second", number=False), Column("Order", number=False),
               *(Column(f"at {percent(share)}") for share in shares)]
    rows = []
    for each in pairs:
        order, means = order_of(each.gaps), {gap.share: gap.difference for gap in each.gaps}
        said = words(order).replace("%", f"{THIN}%")
        rows.append([join(view.name(each.first, 20), " \u2212 ", view.name(each.second, 20)),
                     tag("span", {"class": "flag"}, said) if order.kind == "changes" else said,
                     *(MISSING if share not in means else _mean(means[share]) for share in shares)])
    whole = table("Every pair of trained models, the one that ends with the lower mean second: the mean difference at "
                  "shares of the budget, in bold where the interval over seeds leaves zero out", columns, rows,
                  name="order-pairs")
    return whole if len(rows) <= OPEN_ROWS else folded(f"The order of all {len(rows)} pairs", whole)


def _mean(interval: Interval) -> Child:
    shown = signed(interval.mean, 3)
    return tag("strong", None, shown) if side_of_zero(interval) else shown


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
    x = LinearAxis(0.0, 1.04, *SMALL.x, (0.0, 0.25, 0.5, 0.75, 1.0), lambda share: f"{share:.0%}".removesuffix("%"))
    style = view.styles[difference.first]
    points = [gap for gap in difference.gaps if y.holds(gap.difference.mean) and x.holds(gap.share)]
    hover = tuple(Hover(x.place(gap.share), y.place(gap.difference.mean), f"{percent(gap.share)} of the budget",
                        interval_words(gap)) for gap in points)
    path = [(point.x, point.y) for point in hover]
    drawing = join([_whisker(gap, x, y) for gap in points],
                   line(path, {"class": "mean", "stroke-dasharray": style.dash or None}),
                   spots(path) if path else "")
    zero = tag("line", {"class": "zero", "x1": x.start, "x2": x.end, "y1": round(y.place(0), 1),
                        "y2": round(y.place(0), 1)})
    spoken = "; ".join(f"at {percent(gap.share)}: {interval_words(gap)}" for gap in difference.gaps)
    return draw(Panel(f"gap-{index}", view.key(difference.first, 20),
                      f"{difference.first} minus {difference.second} during training",
                      f"Bits per byte above {difference.second}, by share of the budget. {spoken}.", x, y,
                      "% of the budget", "difference", [Series(difference.first, style, drawing, hover)], SMALL, zero,
                      _note(difference)))


def _note(difference: Difference) -> Child:
    """Whether the order holds, in two words; the table of pairs says where it does not."""
    kind = order_of(difference.gaps).kind
    words_of = {"holds": "order holds", "changes": "order changes", "open": "means cross",
            "unknown": "order not known"}[kind]
    return tag("span", {"class": "flag"}, words_of) if kind == "changes" else words_of


def _whisker(gap: GapPoint, x: Axis, y: Axis) -> Markup:
    low, high = gap.difference.low, gap.difference.high
    if low is None or high is None or not (known(low) and known(high)):
        return Markup("")
    low, high = max(low, y.low), min(high, y.high)
    return whisker(x.place(gap.share), y.place(low), y.place(high))

"""How sure the differences are: what so many runs can show, each model against the best, and every pair."""

from __future__ import annotations

from collections.abc import Sequence

from weft.comparison.findings import TEST_NAMES, larger_doubt, pairing, pairing_effect
from weft.comparison.power import DetectableRange, reaches
from weft.comparison.report.view import View, half_width
from weft.comparison.statistics import Interval
from weft.comparison.study_result import Difference
from weft.drawing.axes import Axis, linear
from weft.drawing.marks import marker
from weft.drawing.markup import Child, Markup, join, tag
from weft.drawing.numbers import MISSING, confidence, decimals_of, fixed, integer, known, p_value, signed, significant
from weft.drawing.tables import Column, at, folded, rule, scale, strip, table


def reach(view: View) -> Markup:
    """For 3, 5 and 10 runs and the study's own number: what |t| must exceed, and the smallest difference found."""
    rows = reaches(view.result)
    basis = tag("p", {"class": "small"}, view.result.detectable_basis) if view.result.detectable_basis else ""
    if not rows:
        return join(tag("p", {"class": "none"}, "Not worked out for this study."), basis)
    columns = [Column("Runs of each model", number=False), Column("|t| must exceed"),
               Column("Detectable difference", "as known before the runs"),
               Column("Detectable difference", "by runs and documents")]
    return join(table(_reach_caption(view), columns, [_reach_row(view, each) for each in rows], name="reach",
                      attributes={"class": "reach"}), basis)


def _reach_caption(view: View) -> str:
    result, models = view.result, len(view.result.entries)
    pairs = models * (models - 1) // 2
    spreads = "" if result.test == "paired" else ", the less the more alike the two models' runs spread"
    return (f"For {TEST_NAMES[result.test]} at {confidence(result.level)} and {integer(pairs)} "
            f"{'pair' if pairs == 1 else 'pairs'} of models: what |t| must exceed for the clearest of all pairs to be "
            f"told apart (the first step of Holm's correction) where runs alone vary{spreads}, and the smallest "
            "true difference that is found four times of five, on another text too.")


def _reach_row(view: View, each: DetectableRange) -> list[Child]:
    own = each.runs == view.result.seeds
    return [join(integer(each.runs), " ", tag("strong", None, "this study")) if own else integer(each.runs),
            MISSING if each.critical is None else limits(each.critical),
            expected(each), MISSING if each.found is None else reach_of(each.found)]


def expected(each: DetectableRange) -> str:
    """The difference in bits per byte that could be expected before the runs, or else in standard deviations."""
    if each.difference is not None:
        return reach_of(each.difference)
    return "not known" if each.spreads is None else f"{each.spreads:.2g} standard deviations"


def limits(critical: tuple[float, float]) -> str:
    """The value that |t| must exceed, at the least and at the most, where these differ."""
    least, most = (fixed(each, 1 if each >= 10 else 2) for each in critical)
    return least if least == most else f"{least} to {most}"


def reach_of(difference: float) -> str:
    """Bits per byte."""
    return fixed(difference, 4 if difference < 0.01 else 3)


def forest(view: View) -> Markup:
    """The chart against the best model, and all pairs folded below it."""
    if view.best is None or not view.result.differences:
        return tag("p", {"class": "none"}, "No two models have finished runs to compare.")
    main = [difference for entry in view.ranked if (difference := view.against_best(entry)) is not None]
    axis = _axis(main)
    chart = _chart(view, main, axis) if axis is not None else Markup("")
    count = len(view.result.differences)
    return join(chart, folded("The pair with its standard errors" if count == 1 else
                              f"All {count} pairs, with their standard errors", _all_pairs(view)))


def lead(view: View) -> Markup:
    """The test, and what pairing does to the intervals of this study."""
    both = ("Intervals and p-values are for other runs on another text: the variance from run to run and that of a "
            "bootstrap of the test text's documents are added.")
    test = pairing_effect(view.result) or f"The test of runs is {TEST_NAMES[view.result.test]}."
    return join(f"{both} {test}", "" if view.result.margin is None else (
        f" Models count as equally good only where two one-sided tests, corrected alike, show that they differ by less "
        f"than {view.result.margin:g} bits per byte, a margin that was stated before the runs."))


def decimals(difference: Difference) -> int:
    """The decimals of a difference: those that its interval allows, and three at least, so that small ones are seen."""
    return max(3, decimals_of(half_width(whole(difference))))


def whole(difference: Difference) -> Interval:
    """The interval over seeds and documents; over documents alone where a single run leaves no other."""
    return difference.over_documents if difference.over_both.low is None else difference.over_both


def bounds(interval: Interval, places: int) -> str:
    """``[low, high]``, or a dash."""
    if interval.low is None or interval.high is None:
        return "\u2013"
    return f"[{signed(interval.low, places)}, {signed(interval.high, places)}]"


def outcome(difference: Difference) -> str:
    """In words, for a difference from the best model."""
    if difference.p_holm is None:
        return "not tested"
    if not difference.tied:
        return "told apart, within the margin" if difference.equivalent else "told apart"
    return "as good" if difference.equivalent else "not told apart"


def _axis(main: Sequence[Difference]) -> Axis | None:
    means = [difference.over_documents.mean for difference in main] + [difference.over_seeds.mean
                                                                       for difference in main]
    reach = max((abs(mean) for mean in means if known(mean)), default=0.0)
    near = [bound for difference in main for interval in (difference.over_seeds, whole(difference))
            for bound in (interval.low, interval.high) if bound is not None and known(bound)
            and abs(bound) <= 3 * reach]
    return linear([*means, *near], 0, 1, include=(0.0,), count=4, margin=0.05)


def _chart(view: View, main: Sequence[Difference], axis: Axis) -> Markup:
    assert view.best is not None
    level = confidence(view.result.level)
    spoken = "; ".join(f"{each.first} {signed(each.over_seeds.mean, decimals(each))}, {outcome(each)}" for each in main)
    chart = scale(axis, f"Differences from {view.best.name} in bits per byte", f"Above zero is worse. {spoken}.",
                  "forest")
    over = "over documents" if view.result.seeds == 1 else "over seeds and documents"
    legend = tag("span", {"class": "panel-note"}, " Bits per byte; to the right is worse. ",
                 _legend("inner"), f" {level} over seeds alone ", _legend("outer"), f" {level} {over}")
    heads = [tag("th", {"scope": "col", "class": kind}, text) for kind, text in (
        ("number", "Difference"), ("number", f"{level} {over}"), ("number", "p (Holm)"), ("", "Outcome"))]
    head = tag("tr", None, tag("th", {"scope": "col"}, "Model"), tag("td", {"class": "strip-cell"}, chart), heads)
    body = tag("tbody", None, [_row(view, difference, axis) for difference in main])
    caption = tag("caption", {"id": "forest-caption"}, tag("strong", None, "Behind ", view.name(view.best)), legend)
    return tag("table", {"class": "strips forest"}, caption, tag("thead", None, head), body)


def _legend(kind: str) -> Markup:
    line = tag("line", {"class": kind, "x1": 0, "x2": 26, "y1": 7, "y2": 7})
    return tag("svg", {"class": "swatch", "width": "26", "height": "14", "aria-hidden": "true", "focusable": "false"},
               line)


def _row(view: View, difference: Difference, axis: Axis) -> Markup:
    style, places = view.styles[difference.first], decimals(difference)
    middle = difference.over_seeds.mean
    marks = [_interval(whole(difference), axis, "outer"), _interval(difference.over_seeds, axis, "inner"),
             at(axis, middle, marker(0, 0, style, 4)) if axis.holds(middle) else Markup("")]
    cells = [(f"strip-cell {style.colour}", "", strip(axis, *marks, zero=True)),
             ("number", "", signed(middle, places)),
             ("number bounds", "interval ", bounds(whole(difference), places)),
             ("number p", "p ", p_value(difference.p_holm)), ("outcome", "", outcome(difference))]
    return tag("tr", {"data-model": str(style.index)}, tag("th", {"scope": "row"}, view.key(difference.first, 26)),
               [tag("td", {"class": kind}, tag("span", {"class": "narrow", "aria-hidden": "true"}, short) if short
                    else "", cell)
                for kind, short, cell in cells])


def _interval(interval: Interval, axis: Axis, kind: str) -> Markup:
    low, high = interval.low, interval.high
    if low is None or high is None or not (known(low) and known(high)) or high < axis.low or low > axis.high:
        return Markup("")
    arrows = [_arrow(axis, bound, kind) for bound, beyond in ((axis.low, low < axis.low),
                                                              (axis.high, high > axis.high)) if beyond]
    return join(rule(axis, max(low, axis.low), min(high, axis.high), kind), arrows)


def _arrow(axis: Axis, bound: float, kind: str) -> Markup:
    """Says that the interval goes on outside the chart."""
    way = -1 if bound == axis.low else 1
    return at(axis, bound, tag("path", {"class": f"beyond {kind}", "d": f"M{-7 * way} -5L{-way} 0L{-7 * way} 5",
                                        "fill": "none"}))


def _all_pairs(view: View) -> Markup:
    columns = [Column("Pair, first minus second", number=False), Column("Difference"), Column("over both"),
               Column("over seeds"), Column("over documents"), Column("Standard error", "from run to run"),
               Column("Standard error", "from document to document"), Column("Larger", number=False),
               Column("Correlation", "of runs of the same number"), Column("Paired interval", "times Welch's"),
               Column("p"), Column("p (Holm)"), Column("Outcome", number=False)]
    return table("Every pair of the study, in bits per byte", columns,
                 [_pair_row(view, each) for each in view.ordered_pairs], name="pairs", attributes={"class": "sortable"})


def _pair_row(view: View, each: Difference) -> list[Child]:
    places = decimals(each)
    found = pairing(view.entry(each.first), view.entry(each.second), view.result.level)
    return [join(view.name(each.first), " \u2212 ", view.name(each.second)), signed(each.over_seeds.mean, places),
            bounds(each.over_both, places), bounds(each.over_seeds, places), bounds(each.over_documents, places),
            error(each.seed_error), error(each.document_error), larger_doubt(each) or MISSING,
            fixed(found.correlation if found else None, 2),
            MISSING if found is None or found.width is None else significant(found.width, 2), p_value(each.p_value),
            p_value(each.p_holm), outcome(each)]


def error(value: float | None) -> str:
    """A standard error, with two significant digits."""
    return MISSING if value is None or not known(value) else significant(value, 2)

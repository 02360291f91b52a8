"""The study in a few sentences, each drawn from its statistics, and none that says more than they do.

The dot plot that opens the page: every model's figure with its interval, and every run.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.comparison.findings import doubts, rates_differ, varied
from weft.comparison.power import looked, reached, reaches
from weft.comparison.report.differences import decimals, expected, reach_of, whole
from weft.comparison.report.ranking import counted_words, extent, interval_of, lost_counts, shown_name, worth
from weft.comparison.report.view import View, half_width
from weft.comparison.results import StudyModel
from weft.comparison.statistics import Interval
from weft.comparison.study_result import Difference, Matched
from weft.comparison.verdict import letters, tied_with
from weft.drawing.axes import Axis, linear
from weft.drawing.marks import marker
from weft.drawing.markup import Child, Markup, join, listed, tag
from weft.drawing.numbers import MISSING, confidence, decimals_of, fixed, known
from weft.drawing.tables import at, percentage, rule, scale, strip


def verdict(view: View) -> Markup:
    """The lead, and what it rests on."""
    if view.best is None:
        return join(tag("p", {"class": "lead"}, "No run finished, so nothing can be said about which model is better. "
                        "The reasons stand under ", tag("a", {"href": "#runs"}, "Runs"), "."))
    lead = tag("p", {"class": "lead"}, _top(view))
    following = _next(view)
    after = tag("p", None, _joined(following)) if following else Markup("")
    looks = looked(view.result)
    result = view.result  # its intervals have sources, of which one is the larger
    grounds = " ".join(each for each in (varied(result), rates_differ(result), doubts(result)) if each)
    rest = [None if looks is None else join(looks), _detectable(view), _seeds(view), join(grounds), _matched(view),
            _crossing(view), _edges(view), _lost(view)]
    return join(lead, dots(view), tag("div", {"class": "grounds"}, after,
                                      [tag("p", None, sentences) for sentences in rest if sentences]))


def _joined(sentences: Sequence[Markup]) -> Markup:
    return join([join(sentence, " ") for sentence in sentences])


def _figure(entry: StudyModel, view: View) -> Markup:
    interval = interval_of(entry, view.result.level)
    half = half_width(interval) if interval is not None else None
    return join(f"{fixed(entry.bits_per_byte, decimals_of(half))} bits per byte")


def unplaced(view: View) -> list[str]:
    """Models that are not told apart from the best although another with a lower mean is not."""
    ranks = [entry.name for entry in view.ranked]
    behind = [ranks.index(name) for name in ranks if name not in view.top]
    return [name for name in view.top if behind and ranks.index(name) > min(behind)]


def _top(view: View) -> Markup:
    assert view.best is not None
    loose = unplaced(view)
    top = [name for name in view.top if name not in loose]
    finished = [entry for entry in view.ranked if known(entry.bits_per_byte)]
    if len(finished) == 1:
        return join("Only ", view.name(view.best), " finished, at ", _figure(view.best, view),
                    "; there is nothing to compare it with.")
    if _untested(view):
        return join(view.name(view.best), " has the lowest figure, ", _figure(view.best, view),
                    ", but no difference could be tested, so this is an order of figures and no finding.")
    if len(top) == 1:
        placed = [entry for entry in finished if entry.name not in loose]
        but = join(", ", listed([view.name(name) for name in loose]), " left aside") if loose else ""
        return join(view.name(view.best), " predicts this text best of the ", f"{len(placed)} models", but, ": ",
                    _figure(view.best, view), ".")
    return _shared_top(view, top, len(finished))


def _shared_top(view: View, top: Sequence[str], finished: int) -> Markup:
    """Several models that are not told apart from the best, though perhaps from each other."""
    assert view.best is not None
    names = [view.name(name) for name in top]
    apart = [each for each in view.ordered_pairs if {each.first, each.second} <= set(top)
             and each.first not in tied_with(each.second, view.result.tied_sets)]
    if apart:
        better = listed([join(view.name(each.second), " is better than ", view.name(each.first)) for each in apart])
        return join(names[0], " has the lowest mean, ", _figure(view.best, view), ", and this study does not tell ",
                    listed(names[1:], "or"), " apart from it; among these, ", better, ".")
    lowest = join(" The lowest mean is ", _figure(view.best, view), ", of ", names[0], ".", _as_good(view, top))
    if len(top) == finished:
        return join("This study does not tell ", listed(names), " apart.", lowest)
    return join(listed(names), " are at the top: this study does not tell them apart.", lowest)


def _as_good(view: View, top: Sequence[str]) -> Markup:
    """Those at the top that tests of equivalence show to be as good as the best."""
    found = [name for name in top if (each := view.difference(name, top[0])) is not None and each.equivalent]
    if not found:
        return Markup("")
    return join(" ", listed([view.name(name) for name in found]), " is as good as " if len(found) == 1 else
                " are as good as ", view.name(top[0]), f" within {view.result.margin:g} bits per byte.")


def _untested(view: View) -> bool:
    return all(difference.p_holm is None for difference in view.result.differences)


def _next(view: View) -> list[Markup]:
    """How far the models that are told apart from the best lie from it."""
    assert view.best is not None
    behind = [difference for entry in view.ranked if entry.name not in view.top
              and (difference := view.against_best(entry)) is not None]
    if not behind or _untested(view):
        return []
    first, *others = behind
    level = confidence(view.result.level)
    interval, over = whole(first), " over documents" if first.over_both.low is None else ""
    shown = ("unknown" if interval.low is None or interval.high is None else
             f"{fixed(interval.low, decimals(first))} to {fixed(interval.high, decimals(first))}")
    sentences = [join("Next, ", view.name(first.first), " needs ", _amount(first), " bits per byte more than ",
                      view.name(view.best), f" ({level} interval{over} {shown}).")]
    if others:
        sentences.append(join("Then come ", listed([join(view.name(each.first), f" (+{_amount(each)})")
                                                    for each in others]), "."))
    return [*sentences, *_loose(view)]


def _loose(view: View) -> list[Markup]:
    """Models that the study cannot place, and by how much their means are higher."""
    assert view.best is not None
    found = [each for name in unplaced(view) if (each := view.against_best(view.entry(name))) is not None]
    if not found:
        return []
    names = listed([join(view.name(each.first), f" (+{_amount(each)} in the mean)") for each in found])
    between = next(entry for entry in view.ranked if entry.name not in view.top)
    return [join(names, " is" if len(found) == 1 else " are", " not told apart from ", view.name(view.best),
                 ", although ", view.name(between), ", whose mean is lower, is: this study cannot place ",
                 "it." if len(found) == 1 else "them.")]


def _amount(difference: Difference) -> str:
    return fixed(difference.over_seeds.mean, decimals(difference))


def _seeds(view: View) -> Markup | None:
    if view.result.seeds > 1:
        return None
    return join("Each model ran once. ", tag("strong", None, "Nothing can be said about other seeds"),
                ": another initialisation or order of the data may change the order of the models, and no interval "
                "here "
                "covers that. The intervals over documents only say how far another text of this kind might move the "
                "figures.")


def _detectable(view: View) -> Markup | None:
    """The difference that the study's own number of runs can show; the other numbers stand in the table of the first
    section."""
    result = view.result
    own = next((each for each in reaches(result) if each.runs == result.seeds), None)
    found = reached(result)
    if own is None or own.critical is None or (found is None and own.difference is None):
        return None
    before = "" if own.difference is None else f" Before its runs, about {reach_of(own.difference)} were expected."
    if found is None:
        said = join(f"could expect to find differences of about {expected(own)} bits per byte or more")
    else:
        assert found.low is not None and found.high is not None, "a spread has an interval"
        said = join("finds differences of about ", tag("strong", None, f"{reach_of(found.mean)} bits per byte"),
                    f" or more, on another text too, by how far its runs and documents lie apart "
                    f"({reach_of(found.low)} to {reach_of(found.high)} by the interval of that)")
    return join(f"With {result.seeds} runs of each model, this study ", said, f", with a power of 0.8.{before} Models "
                "that are not told apart may differ by less, and need not be as good as each other.")


def _matched(view: View) -> Markup | None:
    held = [each for each in view.result.budget.matched if each.held]
    missed = [each for each in view.result.budget.matched if each.missed]
    free = [each for each in view.result.budget.matched if not each.matched
            and (not known(each.spread) or each.spread > 0)]
    sentences = [join(view.result.budget.statement.rstrip(". "), "."), *map(join, counted_words(view))]
    if held:
        sentences.append(join("Matched: ", listed([_extent(each) for each in held]), "."))
    if missed:
        sentences.append(join("Meant to be equal, and not: ", listed([_extent(each) for each in missed]), "."))
    if free:
        sentences.append(join("Not matched, so the models may owe their places to it: ",
                              listed([_extent(each) for each in free]), "."))
    apart = [each.name for each in view.result.budget.settings if not each.equal]
    if view.result.budget.settings:
        sentences.append(join("Trained with different settings of ", listed(apart), ".") if apart else join(
            "Trained alike: optimizer, schedule, precision, averaging, dropout and weight decay."))
    return _joined(sentences)


def _extent(found: Matched) -> str:
    return f"{shown_name(found.quantity)} ({extent(found)})"


def _crossing(view: View) -> Markup | None:
    crossed = [each for each in view.result.differences if each.crosses]
    if not crossed:
        return None
    shown: list[Child] = [join("between ", view.name(each.first), " and ", view.name(each.second))
                          for each in crossed[:3]]
    if len(crossed) > 3:
        shown.append(f"in {len(crossed) - 3} more of the {len(view.result.differences)} pairs")
    return join("The order changes during training ", listed(shown),
                ": a smaller budget would have said otherwise, and a larger "
                "one may.")


def _edges(view: View) -> Markup | None:
    edged = [entry for entry in view.result.entries if entry.edge]
    if not edged:
        return None
    counts = [(entry, sum(run.edge for run in entry.finished), len(entry.finished)) for entry in edged]
    names = listed([join(view.name(entry), f" (in {few} of {runs} runs)" if few < runs else
                         " (in every run)" if runs > 1 else " (in its run)") for entry, few, runs in counts])
    return join("The best learning rate of ", names, " lies at the edge of those tried; a wider search may improve ",
                "it." if len(edged) == 1 else "them.")


def _lost(view: View) -> Markup | None:
    runs = [(entry, run) for entry in view.result.entries for run in entry.runs]
    words = [f"{count} {'is' if count == 1 else 'are'} {status}" if status == "pending" else f"{count} {status}"
             for status, count in lost_counts([run for _, run in runs])]
    if not words:
        return None
    names = [view.name(entry) for entry in view.result.entries if any(run.status != "finished" for run in entry.runs)]
    empty = [view.name(entry) for entry in view.result.entries if not entry.finished]
    none = join(" No run of ", listed(empty, "or"), " finished.") if empty else ""
    flattered = [view.name(entry) for entry in view.result.entries
                 if entry.finished and any(run.status in ("diverged", "failed") for run in entry.runs)]
    mean = join(
        " The mean of ", listed(flattered),
        " is over the runs that finished, which flatters a model that loses some.") if flattered else ""
    return join(f"Of {len(runs)} runs, ", listed(words), " (", listed(names), ").", mean, none)


def dots(view: View) -> Markup:
    """Best first; nothing where no run finished."""
    found = [(entry, interval) for entry in view.ranked
             if (interval := interval_of(entry, view.result.level)) is not None]
    axis = _axis(found)
    if axis is None:
        return Markup("")
    spoken = "; ".join(f"{entry.name} {fixed(interval.mean, 3)}" + (
        "" if interval.low is None or interval.high is None else
        f" ({fixed(interval.low, 3)} to {fixed(interval.high, 3)})") for entry, interval in found)
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


def _row(view: View, entry: StudyModel, interval: Interval, axis: Axis) -> Markup:
    style = view.styles[entry.name]
    places = [percentage(axis, run.bits_per_byte) for run in entry.finished
              if run.bits_per_byte is not None and axis.holds(run.bits_per_byte)]
    ticks = [tag("line", {"class": "outer", "x1": at_x, "x2": at_x, "y1": "19%", "y2": "81%"}) for at_x in places]
    stretch = Markup("")
    if interval.low is not None and interval.high is not None and known(interval.low) and known(interval.high):
        low, high = max(axis.low, interval.low), min(axis.high, interval.high)
        stretch = rule(axis, low, high, "inner") if low <= high else stretch
    dot = at(axis, interval.mean, marker(0, 0, style, 5)) if axis.holds(interval.mean) else Markup("")
    return tag("tr", {"data-model": str(style.index)}, tag("th", {"scope": "row"}, view.key(entry, 26)),
               tag("td", {"class": f"strip-cell {style.colour}"}, strip(axis, join(ticks), stretch, dot)),
               tag("td", {"class": "number"}, worth(entry, view, 4)),
               tag("td", {"class": "unbroken"}, " ".join(letters(entry.name, view.result.tied_sets)) or MISSING))

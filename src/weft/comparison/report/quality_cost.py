"""Quality against cost: what each model is worth beside what it takes, and which models no other beats in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from weft.comparison.report.ranking import interval_of
from weft.comparison.report.view import View
from weft.comparison.results import StudyModel
from weft.comparison.statistics import Interval
from weft.drawing.axes import Axis, linear, logarithmic
from weft.drawing.marks import Label, line, marker, whisker
from weft.drawing.markup import Child, Markup, join, listed, tag
from weft.drawing.numbers import THIN, brief, duration, fixed, integer, known, octets, si, significant
from weft.drawing.panel import Hover, Panel, PlotBox, Series, draw

BOX = PlotBox(width=300, height=222, left=36, right=92, top=12, bottom=38)


@final
@dataclass(frozen=True)
class Cost:
    """A cost of a model, less being better.

    Attributes:
        read: the cost; None where it is not known or, as for the parameters of what is counted, not the same thing.
    """

    name: str
    heading: str
    label: str
    read: Callable[[StudyModel], float | None]
    write: Callable[[float], str]


COSTS = (
    Cost("decoding", "Against decoding time", "time per decoded token",
         lambda entry: None if entry.state is None else entry.state.seconds, lambda value: milliseconds(value)),
    Cost("state", "Against state", "bytes of state of one row",
         lambda entry: None if entry.state is None else float(entry.state.state_bytes), octets),
    Cost("time", "Against training time", "seconds of training, one run",
         lambda entry: entry.median(lambda run: run.seconds), duration),
    Cost("size", "Against size", "parameters",
         lambda entry: float(entry.parameters) if entry.trainable else None, si),
)


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """The places of those points (cost, bits per byte) that no other beats in one and equals or beats in the other,
    from the cheapest on."""
    def beaten(own: tuple[float, float]) -> bool:
        return any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in points)

    return sorted((place for place, point in enumerate(points) if not beaten(point)), key=lambda place: points[place])


def costs_of(view: View, cost: Cost) -> list[tuple[StudyModel, float, float]]:
    """Models whose cost and figure are known: the model, its cost, its mean bits per byte."""
    found = ((entry, cost.read(entry), entry.bits_per_byte) for entry in view.ranked)
    return [(entry, spent, bits) for entry, spent, bits in found
            if spent is not None and bits is not None and known(spent) and known(bits) and spent > 0]


def lead(view: View) -> Markup:
    """The best model, the one of the smallest state and the fastest in decoding."""
    said: list[tuple[tuple[str, ...], list[Child]]] = []
    for names, words in (_best(view), _least(view, COSTS[1]), _least(view, COSTS[0])):
        if names and said and said[-1][0] == names:
            said[-1][1].append(words)
        elif names:
            said.append((names, [words]))
    sentences = join(*[join("; " if place else "", listed([view.name(name) for name in names]), " ", listed(words))
                       for place, (names, words) in enumerate(said)])
    return join(sentences, ". " if said else "", "On the line are the models that no other beats in one of the two "
                "without losing in the other, by their means.")


def _best(view: View) -> tuple[tuple[str, ...], Child]:
    if view.best is None:
        return (), ""
    tied = [view.name(name) for name in view.top[1:]]
    beside = join("; not told apart from ", listed(tied, "or")) if tied else ""
    return (view.best.name,), join(f"predicts best ({fixed(view.best.bits_per_byte, 3)} bits per byte", beside, ")")


def _least(view: View, cost: Cost) -> tuple[tuple[str, ...], Child]:
    """Who has the least of a cost; those that have as little are named with it."""
    found = costs_of(view, cost)
    if len(found) < 2:
        return (), ""
    least = min(spent for _, spent, _ in found)
    names = tuple(entry.name for entry, spent, _ in found if spent == least)
    one = len(names) == 1
    if cost.name == "state":
        after = sorted({entry.state.context for entry, _, _ in found if entry.state is not None})
        verb = "has" if one else "have"
        return names, f"{verb} the smallest state ({cost.write(least)} after {' or '.join(map(integer, after))} tokens)"
    return names, f"{'decodes' if one else 'decode'} fastest ({milliseconds(least)} a token)"


def milliseconds(seconds: float) -> str:
    """The time of a decoded token."""
    return f"{significant(1000 * seconds)}{THIN}ms"


def panels(view: View) -> Markup:
    """A chart for each cost."""
    drawn = [chart for cost in COSTS if (chart := _panel(view, cost))]
    if not drawn:
        return tag("p", {"class": "none"}, "No model has both a figure and a cost.")
    return tag("div", {"class": "panels worth"}, drawn)


def _panel(view: View, cost: Cost) -> Markup:
    found = costs_of(view, cost)
    intervals = [interval_of(entry, view.result.level) for entry, _, _ in found]
    x = logarithmic([spent for _, spent, _ in found], *BOX.x, brief(cost.write), count=4, margin=0.08, at_least=1.5)
    y = linear(_heights(found, intervals), *BOX.y, count=5)
    if x is None or y is None:
        return Markup("")
    front = pareto([(spent, bits) for _, spent, bits in found])
    series = [_series(view, cost, each, interval, x, y) for each, interval in zip(found, intervals, strict=True)]
    best = [found[place] for place in front]
    said = "; ".join(f"{entry.name}: {cost.write(spent)}, {fixed(bits, 3)}" for entry, spent, bits in found)
    absent = [entry.name for entry in view.ranked if entry not in [each for each, _, _ in found]]
    note: Child = f"not drawn: {', '.join(absent)}" if absent else ""
    return draw(Panel(f"worth-{cost.name}", cost.heading, f"Bits per byte {cost.heading.lower()}",
                      f"On the line: {', '.join(entry.name for entry, _, _ in best)}. {said}.", x, y, cost.label,
                      "bits per byte", series, BOX, _front(best, x, y), note))


def _heights(found: Sequence[tuple[StudyModel, float, float]], intervals: Sequence[Interval | None]) -> list[float]:
    """The values that the chart's height must hold: means, and intervals that are not many times as wide as what lies
    between."""
    means = [bits for _, _, bits in found]
    reach = max(means, default=0.0) - min(means, default=0.0)
    bounds = [bound for each in intervals if each is not None for bound in (each.low, each.high) if bound is not None]
    return [*means, *(bound for bound in bounds if known(bound) and reach
                      and min(means) - reach <= bound <= max(means) + reach)]


def _front(best: Sequence[tuple[StudyModel, float, float]], x: Axis, y: Axis) -> Markup:
    """Steps from model to model: up to the next one's cost, no more is known to be had than the last one's worth."""
    path = []
    for place, (_, spent, bits) in enumerate(best):
        if place:
            path.append((x.place(spent), y.place(best[place - 1][2])))
        path.append((x.place(spent), y.place(bits)))
    if path:
        path = [(path[0][0], y.end), *path, (x.end, path[-1][1])]
    return line(path, {"class": "front"})


def _series(view: View, cost: Cost, each: tuple[StudyModel, float, float], interval: Interval | None, x: Axis,
            y: Axis) -> Series:
    entry, spent, bits = each
    style, place = view.styles[entry.name], (x.place(spent), y.place(bits))
    drawing = [marker(*place, style, 4)]
    if interval is not None and interval.low is not None and interval.high is not None:
        low, high = (y.place(max(y.low, min(y.high, bound))) for bound in (interval.low, interval.high))
        drawing.insert(0, whisker(place[0], low, high))
    hover = Hover(*place, cost.write(spent), fixed(bits, 3))
    return Series(entry.name, style, join(drawing), (hover,), Label(place[1], entry.name, style))

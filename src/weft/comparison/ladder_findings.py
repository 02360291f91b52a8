"""Studies of the same models at several budgets, read together: laws of scaling, and where the order of models turns.

    bits(x) = floor + scale (x / X)^-exponent,    floor, scale >= 0,    X: the largest budget

(Hoffmann et al. 2022, equation 2, along one axis) is fitted by variable projection (Golub and Pereyra 1973): for each
of many exponents the two others are a linear problem. Where the order turns is read from the measured budgets, between
two of them on a line over the logarithm of the budget, and from no law.

Every interval comes from drawn means of each model's runs at each budget: the mean plus Student's t with n - 1 degrees
of freedom times s / sqrt(n), whose interval is that of Student for one mean. They hold for other runs on the same text.
How often they contain what is true is counted in `recipes/ladder_error_rates`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float64

from weft.comparison.extension import EXPONENTS, fitted
from weft.comparison.statistics import Interval
from weft.core.strict_json import Record

FEWEST_RUNGS = 5
"""Budgets from which on a law is fitted: it has three numbers, and the largest budget tests it."""
DRAWS, SEED = 2_000, 0
FORMAT = "weft.ladder/1"
NEAR = 1e-3
"""Bits per byte up to which a point that is off the law is not held against it: the exponents that are tried lie 3 %
apart."""
WRONG = 0.01
"""The p-value below which what is left of the points says that the law is wrong."""

Runs: TypeAlias = Sequence[Sequence[float]]
"""Bits per byte of the runs of one model, at each budget."""
Means: TypeAlias = Float64[np.ndarray, "N P"]
"""Drawn means of a model, at each budget."""


@dataclass(frozen=True)
class ScalingLaw(Record):
    """The law of one model.

    Attributes:
        floor: bits per byte that no budget goes below.
        scale: bits per byte above the floor at the largest budget.
        exponent: of the law.
        said: bits per byte at the largest budget by the law of the others, as it was told before that was run; None: it
            was not.
        refused: why no law is shown, in a clause; empty where one is.
    """

    floor: Interval | None = None
    scale: Interval | None = None
    exponent: Interval | None = None
    said: Interval | None = None
    refused: str = ""


@dataclass(frozen=True)
class LadderCurve(Record):
    """One model over the budgets.

    Attributes:
        means: at each budget, over the runs; None where no run finished.
    """

    name: str
    means: tuple[Interval | None, ...]
    law: ScalingLaw


@dataclass(frozen=True)
class Crossing(Record):
    """A budget at which the order of two models turns.

    Attributes:
        before: the model that predicts better below it.
        after: the one that does above.
        budget: where the lines of the means cross.
        low: the bound of the interval; None: below the budgets that were tried.
        high: likewise; None: above them.
        told: whether the runs show that the order turns: ``before`` is better at a budget below and ``after`` at one
            above, each at half of the level divided by the number of budgets on its side, so that equal models, and
            models that are equal on one side, are told to turn no oftener than the level says.
    """

    before: str
    after: str
    budget: float
    low: float | None
    high: float | None
    told: bool


@dataclass(frozen=True)
class SpeedUp(Record):
    """The largest budget over the one at which ``better`` predicts as well as ``other`` does there.

    Attributes:
        factor: of the means; the bounds are of its interval. The smallest budget that was tried bounds all of them.
        reached: whether ``better`` is worse than that at the smallest budget, so that the factor is no bound alone.
    """

    better: str
    other: str
    factor: float
    low: float
    high: float
    reached: bool


@dataclass(frozen=True)
class LadderResult(Record):
    """The findings of a ladder.

    Attributes:
        axis: the kind of the budgets: ``tokens``, ``flops``, ``seconds`` or ``parameters``.
        amounts: the budgets of the studies that have been run, rising.
        folders: of these studies, relative to the ladder's.
        best: at each budget the model of the lowest mean, and those that its study does not tell apart from it.
        said_at: when the figures of the largest budget were told by the law of the others; empty: not yet, or too few
            budgets.
        complete: whether all budgets have been run.
    """

    name: str
    started: str
    axis: str
    amounts: tuple[float, ...]
    folders: tuple[str, ...]
    confidence: float
    curves: tuple[LadderCurve, ...]
    crossings: tuple[Crossing, ...]
    speed_ups: tuple[SpeedUp, ...]
    best: tuple[tuple[str, ...], ...]
    said_at: str
    complete: bool
    command: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data, with the name of its format."""
        return {"format": FORMAT, **super().to_json()}


def drawn_means(runs: Runs, seed: int) -> Means | None:
    """`DRAWS` draws of what the runs say of the means. None: some budget has no two runs, which alone say how far they
    lie apart."""
    if any(len(each) < 2 for each in runs):
        return None
    generator = np.random.Generator(np.random.PCG64(seed))
    columns = [np.mean(each) + np.std(each, ddof=1) / math.sqrt(len(each)) * generator.standard_t(len(each) - 1, DRAWS)
               for each in runs]
    drawn: np.ndarray = np.maximum(np.stack(columns, 1), 0.0)  # no text takes fewer bits than none
    return drawn


def interval(mean: float, draws: Float64[np.ndarray, " N"] | None, confidence: float) -> Interval:
    """The interval of draws, which contains the estimate."""
    if draws is None:
        return Interval(mean, None, None)
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(mean, min(float(low), mean), max(float(high), mean))


def curve_of(name: str, budgets: Sequence[float], runs: Runs, confidence: float, *, trained: bool,
             said: Interval | None = None) -> LadderCurve:
    """A model's means with their intervals, and its law, with what was ``said`` of the largest budget."""
    place = {index: each for index, each in enumerate(runs) if each}
    draws = drawn_means(list(place.values()), SEED)
    means: list[Interval | None] = [None] * len(budgets)
    for column, index in enumerate(place):
        means[index] = interval(float(np.mean(place[index])), None if draws is None else draws[:, column], confidence)
    return LadderCurve(name, tuple(means), replace(law_of(budgets, runs, confidence), said=said) if trained else
                       ScalingLaw(refused="it is counted, and not trained"))


def law_of(budgets: Sequence[float], runs: Runs, confidence: float) -> ScalingLaw:
    """The law of a model's runs, or why none is shown."""
    if len(budgets) < FEWEST_RUNGS or not all(runs):
        return ScalingLaw(refused=f"a law needs {FEWEST_RUNGS} budgets with runs that finished")
    share, draws = np.array(budgets) / budgets[-1], drawn_means(runs, SEED)
    means = np.array([[float(np.mean(each)) for each in runs]])
    if draws is None:
        return ScalingLaw(refused="a law is tested by how far runs lie apart, which a single run does not say")
    law, found = fitted(share, means), fitted(share, draws)
    if (p := misfit(share, runs)) < WRONG:
        return ScalingLaw(refused=f"its points lie further from the law than runs lie apart (p = {p:.2g})")
    if law.exponent[0] in (EXPONENTS[0], EXPONENTS[-1]):
        return ScalingLaw(refused="the best exponent is the last that was tried")
    floor, scale, exponent = (interval(float(own[0]), drawn, confidence) for own, drawn in zip(law, found, strict=True))
    return ScalingLaw(floor, scale, exponent)


def said_of(budgets: Sequence[float], lower: Runs, confidence: float) -> Interval | None:
    """Bits per byte at the largest of the budgets by the law of the runs at the others. None: fewer than four of these,
    or a single run at one."""
    if len(lower) < FEWEST_RUNGS - 1 or (draws := drawn_means(lower, SEED)) is None:
        return None
    share, end = np.array(budgets[:-1]) / budgets[-1], np.ones(1)
    means = np.array([[float(np.mean(each)) for each in lower]])
    return interval(float(fitted(share, means).at(end)[0, 0]), fitted(share, draws).at(end)[:, 0], confidence)


def misfit(share: Float64[np.ndarray, " P"], runs: Runs) -> float:
    """The p-value of a model's points under its own law: how often points of the law with noise such as that of the
    runs lie as far from the law that is fitted to them."""
    means = np.array([[float(np.mean(each)) for each in runs]])
    errors = np.array([max(float(np.std(each, ddof=1)) / math.sqrt(len(each)), NEAR) for each in runs])
    law = fitted(share, means).at(share)
    generator = np.random.Generator(np.random.PCG64(SEED + 1))
    noise = np.stack([error * generator.standard_t(len(each) - 1, DRAWS)
                      for error, each in zip(errors, runs, strict=True)], 1)
    drawn = law + noise
    far = (((drawn - fitted(share, drawn).at(share)) / errors) ** 2).sum(1)
    own = float((((means - law) / errors) ** 2).sum())
    return float((1 + (far >= own).sum()) / (1 + DRAWS))


def turns(x: Float64[np.ndarray, " P"], difference: Float64[np.ndarray, " P"]) -> list[tuple[float, int]]:
    """The places at which a line through points changes its sign, each with the sign behind it."""
    found, sign, last = list[tuple[float, int]](), 0, 0
    for place, value in enumerate(difference):
        now = int(np.sign(value))
        if now and sign and now != sign:
            before, after = difference[last], difference[place]
            found.append((float(x[last] + (x[place] - x[last]) * before / (before - after)), now))
        if now:
            sign, last = now, place
    return found


def crossings(budgets: Sequence[float], runs: Mapping[str, Runs], confidence: float) -> tuple[Crossing, ...]:
    """Where the order of each two models turns, at the budgets that both have runs at.

    In every draw the turn of the same direction that is next to that of the means counts; where there is none, the turn
    lies below all budgets if the model that is better behind it is better at most of them, and otherwise above.
    """
    found = list[Crossing]()
    for first, second in combinations(runs, 2):
        kept = [place for place in range(len(budgets)) if runs[first][place] and runs[second][place]]
        x = np.log(np.array([budgets[place] for place in kept]))
        ours, theirs = ([runs[name][place] for place in kept] for name in (first, second))
        means = np.array([np.mean(a) - np.mean(b) for a, b in zip(ours, theirs, strict=True)])
        pair = drawn_means(ours, SEED), drawn_means(theirs, SEED + 1)
        for at, sign in turns(x, means):
            before, after = (first, second) if sign > 0 else (second, first)
            if pair[0] is None or pair[1] is None:
                found.append(Crossing(before, after, math.exp(at), None, None, told=False))
            else:
                drawn = sign * (pair[0] - pair[1])
                low, high = _bounds(x, drawn, at, confidence)
                found.append(Crossing(before, after, math.exp(at), low, high, _told(x, drawn, at, confidence)))
    return tuple(found)


def _told(x: Float64[np.ndarray, " P"], drawn: Means, at: float, confidence: float) -> bool:
    """Whether the difference is below zero at a budget before the turn, and above it at one behind."""
    sides = (drawn >= 0).mean(0)[x < at], (drawn <= 0).mean(0)[x > at]
    return all(bool((side <= (1 - confidence) / 2 / len(side)).any()) for side in sides if len(side))


def _bounds(x: Float64[np.ndarray, " P"], drawn: Means, at: float,
            confidence: float) -> tuple[float | None, float | None]:
    """The interval of a turn from below zero to above, whose bounds are None beyond the budgets."""
    places = list[float]()
    for each in drawn:
        same = [place for place, sign in turns(x, each) if sign > 0]
        beyond = -math.inf if float(np.median(np.sign(each))) > 0 else math.inf
        places.append(min(same, key=lambda place: abs(place - at)) if same else beyond)
    low, high = np.quantile(places, [(1 - confidence) / 2, (1 + confidence) / 2], method="nearest")
    return _budget(min(float(low), at)), _budget(max(float(high), at))


def _budget(place: float) -> float | None:
    return math.exp(place) if math.isfinite(place) else None


def speed_ups(budgets: Sequence[float], runs: Mapping[str, Runs], confidence: float) -> tuple[SpeedUp, ...]:
    """For each two models the budget that the one which is better at the largest saves."""
    found = list[SpeedUp]()
    x = np.log(np.array(budgets))
    for first, second in combinations([name for name in runs if all(runs[name])], 2):
        better, other = sorted((first, second), key=lambda name: float(np.mean(runs[name][-1])))
        means = np.array([float(np.mean(each)) for each in runs[better]])
        at = _reaching(x, means, float(np.mean(runs[other][-1])))
        ours, theirs = drawn_means(runs[better], SEED), drawn_means(runs[other], SEED + 1)
        if ours is None or theirs is None:
            continue
        places = np.array([_reaching(x, each, float(level)) for each, level in zip(ours, theirs[:, -1], strict=True)])
        said = interval(at, places, confidence)
        assert said.low is not None and said.high is not None, "draws have quantiles"
        factor, low, high = (math.exp(float(x[-1]) - each) for each in (at, said.high, said.low))
        found.append(SpeedUp(better, other, factor, low, high, at > float(x[0])))
    return tuple(found)


def _reaching(x: Float64[np.ndarray, " P"], bits: Float64[np.ndarray, " P"], level: float) -> float:
    """The first place at which a line through points is at ``level`` or below; the last one where it never is."""
    below = np.flatnonzero(bits <= level)
    if not len(below):
        return float(x[-1])
    place = int(below[0])
    if place == 0:
        return float(x[0])
    before, after = bits[place - 1], bits[place]
    return float(x[place - 1] + (x[place] - x[place - 1]) * (before - level) / (before - after))

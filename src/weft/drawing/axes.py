"""Axes: the mapping from values to coordinates of a chart, and the round numbers at an axis."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

MANTISSAS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))
"""Round numbers of a decade, in sets from few to many."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Axis(ABC):
    """A line of values from ``low`` to ``high`` drawn from ``start`` to ``end``.

    Attributes:
        ticks: values with a mark and a number.
        write: how a tick is written.
    """

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    write: Callable[[float], str]

    @abstractmethod
    def share(self, value: float) -> float:
        """0 at ``low``, 1 at ``high``."""

    def place(self, value: float) -> float:
        """The coordinate of a value on the chart."""
        return self.start + self.share(value) * (self.end - self.start)

    def holds(self, value: float | None) -> bool:
        """Whether the value can be drawn: finite, and inside the axis up to rounding."""
        return value is not None and math.isfinite(value) and self.low <= value <= self.high


class LinearAxis(Axis):
    """A linear axis: equal differences are equal lengths."""

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


class LogarithmicAxis(Axis):
    """A logarithmic axis: equal ratios are equal lengths."""

    def share(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low)


def linear(values: Iterable[float | None], start: float, end: float, write: Callable[[float], str] | None = None, *,
           include: Iterable[float] = (), count: int = 5, margin: float = 0.06) -> LinearAxis | None:
    """A linear axis around the finite values and those to ``include``; None without a finite value."""
    found = [value for value in values if value is not None and math.isfinite(value)]
    if not found:
        return None
    found += list(include)
    low, high = min(found), max(found)
    room = (high - low) * margin or abs(high) * 0.05 or 1.0
    low, high = low - room, high + room
    step = linear_step(high - low, count)
    return LinearAxis(low, high, start, end, linear_ticks(low, high, step), write or plain_writer(step))


def linear_step(span: float, count: int) -> float:
    """The smallest round step that gives at most ``count`` ticks."""
    decade = 10.0 ** math.floor(math.log10(span / count))
    return next(decade * step for step in STEPS if decade * step >= span / count * 0.999)


def linear_ticks(low: float, high: float, step: float) -> tuple[float, ...]:
    """Multiples of the step inside the axis."""
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(number * step for number in range(first, last + 1))


def plain_writer(step: float) -> Callable[[float], str]:
    """A number with as many decimals as the step has."""
    decimals = next((count for count in range(8) if abs(step * 10**count - round(step * 10**count)) < 1e-6), 8)
    return lambda value: f"{value:,.{decimals}f}".replace("-", "\u2212") if abs(value) > step / 1e6 else "0"


def logarithmic(values: Iterable[float | None], start: float, end: float, write: Callable[[float], str], *,
                count: int = 5, margin: float = 0.04, at_least: float = 1.05) -> LogarithmicAxis | None:
    """A logarithmic axis around the finite values above zero; None without one."""
    found = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    if not found:
        return None
    low, high = min(found), max(found)
    room = max(high / low, at_least) ** margin
    low, high = low / room, high * room
    if high / low < at_least:
        low, high = low / math.sqrt(at_least), high * math.sqrt(at_least)
    return LogarithmicAxis(low, high, start, end, logarithmic_ticks(low, high, count), write)


def logarithmic_ticks(low: float, high: float, count: int) -> tuple[float, ...]:
    """Round numbers of the decades inside the axis, at most ``count``; within a part of a decade, linear steps."""
    if high / low < 3:
        return linear_ticks(low, high, linear_step(high - low, count))
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    best: tuple[float, ...] = ()
    for mantissas in MANTISSAS:
        ticks = tuple(each * 10.0**decade for decade in decades for each in mantissas)
        inside = tuple(tick for tick in ticks if low <= tick <= high)
        if len(inside) <= count:
            best = inside
    every = math.ceil(len(decades) / count)
    whole = tuple(10.0**decade for decade in decades if decade % every == 0 and low <= 10.0**decade <= high)
    return best if len(best) >= 2 else whole


def powers_of_two(values: Iterable[int], start: float, end: float, write: Callable[[float], str], *,
                  count: int = 6) -> LogarithmicAxis | None:
    """A logarithmic axis for lengths of context, with ticks at powers of two."""
    axis = logarithmic(values, start, end, write)
    if axis is None:
        return None
    exponents = range(math.ceil(math.log2(axis.low)), math.floor(math.log2(axis.high)) + 1)
    every = max(1, math.ceil(len(exponents) / count))
    ticks = tuple(2.0**exponent for exponent in exponents if (exponents[-1] - exponent) % every == 0)
    return LogarithmicAxis(axis.low, axis.high, start, end, ticks or axis.ticks, write)

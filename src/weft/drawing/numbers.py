"""Numbers as text: as many digits as are significant, with units and separated thousands."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable

THIN = "\u202f"
"""A narrow no-break space, between a number and its unit."""
MISSING = "\u2013"
PREFIXES = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15), ("E", 1e18), ("Z", 1e21))
SMALL = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
FEWEST, MOST = 2, 4


def known(value: float | None) -> bool:
    """Whether the value is a finite number."""
    return value is not None and math.isfinite(value)


def decimals_of(half_width: float | None) -> int:
    """Decimals of a figure whose interval reaches so far to each side: two digits of the half width, 2 to 4 in all.

    Without an interval three: nothing says how many are known, and the third is the last that studies argue about.
    """
    if half_width is None or not math.isfinite(half_width):
        return 3
    if half_width <= 0:
        return MOST
    return min(MOST, max(FEWEST, 1 - math.floor(math.log10(half_width))))


def fixed(value: float | None, decimals: int) -> str:
    """A number with that many decimals and a true minus sign; a dash for a missing or infinite one."""
    if value is None or not math.isfinite(value):
        return MISSING
    shown = f"{value:,.{decimals}f}"
    return (shown if shown.strip("-0.,") else shown.removeprefix("-")).replace("-", "\u2212")  # no sign before a zero


def signed(value: float | None, decimals: int) -> str:
    """As `fixed`, with a plus sign above zero."""
    shown = fixed(value, decimals)
    return f"+{shown}" if shown[0] not in "\u2212\u2013" and shown.strip("0.,") else shown


def integer(value: int) -> str:
    """A whole number with separated thousands."""
    return f"{value:,}".replace("-", "\u2212")


def significant(value: float, digits: int = 3) -> str:
    """A number to three significant digits, without an exponent."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    exponent = math.floor(math.log10(abs(round(value, digits - 1 - exponent))))
    return f"{round(value, digits - 1 - exponent):,.{max(0, digits - 1 - exponent)}f}".replace("-", "\u2212")


def si(value: float | None, unit: str = "", digits: int = 3) -> str:
    """A number to three significant digits with an SI prefix: ``3.42 M``, ``1.20 GB``."""
    if value is None or not math.isfinite(value):
        return MISSING
    index = max((index for index, (_, scale) in enumerate(PREFIXES) if abs(value) >= scale), default=0)
    if index and float(significant(value / PREFIXES[index][1], digits).replace(",", "").replace("\u2212", "-")) >= 1000:
        index = min(index + 1, len(PREFIXES) - 1)
    prefix, scale = PREFIXES[index]
    whole = index == 0 and float(value).is_integer()
    shown = integer(int(value)) if whole else significant(value / scale, digits)
    return f"{shown}{THIN}{prefix}{unit}".rstrip(THIN)


def octets(value: float | None) -> str:
    """A number of bytes: ``65.5 kB``."""
    return si(value, "B")


def duration(value: float | None) -> str:
    """A duration of a computation in seconds: ``842 s``, ``1.30 ms``."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value >= 1 or value == 0:
        return f"{significant(value) if value < 1000 else integer(round(value))}{THIN}s"
    unit, scale = next(((unit, scale) for unit, scale in SMALL if value >= scale), SMALL[-1])
    return f"{significant(value / scale)}{THIN}{unit}"


def percent(share: float, digits: int = 2) -> str:
    """``0.034`` as ``3.4 %``."""
    return f"{significant(100 * share, digits)}{THIN}%"


def confidence(level: float) -> str:
    """``0.95`` as ``95 %``."""
    return f"{level * 100:.5g}{THIN}%"


def p_value(value: float | None) -> str:
    """A p-value to two significant digits; a bound below a thousandth."""
    if value is None or not math.isfinite(value):
        return MISSING
    return "< 0.001" if value < 0.001 else fixed(value, 2 if value >= 0.1 else 3)


def ratio(spread: float) -> str:
    """A ratio of the largest to the smallest value, given minus one: ``3.4 %``, or ``2.4×`` from a doubling on."""
    return f"{significant(1 + spread, 2)}×" if spread >= 1 else percent(spread)


def learning_rate(value: float) -> str:
    """A learning rate as the shortest decimal of two digits: ``0.003``, ``3e-05``."""
    return f"{value:.2g}".replace("e-0", "e\u2212").replace("e-", "e\u2212")


def brief(write: Callable[[float], str]) -> Callable[[float], str]:
    """``write`` without trailing zeros of decimals, for the round numbers of an axis."""
    return lambda value: re.sub(r"\.0+(?!\d)|(\.\d*?[1-9])0+(?!\d)", r"\1", write(value))


def moment(stamp: str) -> str:
    """An ISO 8601 time as ``20 November 2026, 23:41 UTC``; other text unchanged."""
    try:
        when = datetime.datetime.fromisoformat(stamp)
    except ValueError:
        return stamp
    if when.tzinfo is not None:
        when = when.astimezone(datetime.UTC)
    month = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
             "November",
             "December")[when.month - 1]
    return f"{when.day} {month} {when.year}, {when:%H:%M} UTC"

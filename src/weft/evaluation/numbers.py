"""Numbers for JSON, which has no infinity."""

from __future__ import annotations

import math


def plain(value: float | None) -> float | str | None:
    """``value``, with "Infinity", "-Infinity" or "NaN" for what JSON cannot write as a number."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def exponential(value: float) -> float:
    """e^value, infinity where a float cannot hold it."""
    return math.exp(value) if value < 709 else math.inf

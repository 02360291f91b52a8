"""Numbers at the borders of floats."""

from __future__ import annotations

import math


def exponential(value: float) -> float:
    """e^value, infinity where a float cannot hold it."""
    return math.exp(value) if value < 709 else math.inf

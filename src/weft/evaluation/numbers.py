"""Functions that do not overflow."""

from __future__ import annotations

import math


def exponential(value: float) -> float:
    """e^value, or infinity if that exceeds the range of floats."""
    return math.exp(value) if value < 709 else math.inf

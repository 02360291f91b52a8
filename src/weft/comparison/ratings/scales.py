"""Checks of the numbers that define a scale of ratings."""

from __future__ import annotations

import math

from weft.core.errors import InputError


def require_positive(name: str, value: float) -> None:
    """Refuse a number that is not positive and finite.

    Raises:
        InputError: it is not.
    """
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{value}, which must be positive and finite.", where=name, remedy="Give a positive number.")

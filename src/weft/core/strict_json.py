"""JSON that every reader takes: infinities and NaN, for which JSON has no numbers, are strings."""

from __future__ import annotations

import json
import math
from pathlib import PurePath
from typing import Any


def dumps(data: Any, *, indent: int | None = None) -> str:
    """``data`` as JSON text, with ``"Infinity"``, ``"-Infinity"`` and ``"NaN"`` for what is not finite, as in the JSON
    of Protocol Buffers, and paths as strings. `number` reads them back."""
    return json.dumps(_plain(data), indent=indent, allow_nan=False)


def number(value: float | str) -> float:
    """The number that `dumps` wrote; bare infinities and NaN of older files are numbers already."""
    return float(value)


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else "Infinity" if data > 0 else "-Infinity"
    return str(data) if isinstance(data, PurePath) else data

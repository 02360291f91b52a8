"""Where one form of an operation begins to be faster than another: ``thresholds.json``, read.

The file holds, for every operation, the order of preference among its forms, and, for every processor measured, the
thresholds with the day and the versions they were measured with; ``assumed`` are those of processors that were not
measured, each with its reason beside the name in the code. ``benchmarks/thresholds.py`` renews the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

from weft.core.compiling import constant_to_compiler
from weft.ops.processor import processor_name

FILE = Path(__file__).with_suffix(".json")


@final
@dataclass(frozen=True)
class Measured:
    """Thresholds as one processor gave them.

    Attributes:
        processor: its name, as the system reports it.
        threads: with which PyTorch computed.
        torch: version of PyTorch.
        date: of the measurement, ISO 8601.
        values: by operation and name, ``rms_norm.few``.
    """

    processor: str
    threads: int
    torch: str
    date: str
    values: Mapping[str, float]


def order_of(operation: str) -> Sequence[str]:
    """The names of an operation's forms in the order of preference; none for an operation of a plugin."""
    order: Sequence[str] = _content()["orders"].get(operation, ())
    return order


def measured(processor: str | None = None) -> Measured:
    """The thresholds of a processor (None: this one), or those of the file's first where it was not measured."""
    entries = _content()["measured"]
    name = processor_name() if processor is None else processor
    return Measured(**next((entry for entry in entries if entry["processor"] == name), entries[0]))


@constant_to_compiler
def threshold(name: str) -> float:
    """A threshold of this processor, such as ``rms_norm.few``; that of the file's first where it was not measured, and
    the assumed one where it was measured on neither."""
    return _values()[name]


@cache
def _values() -> Mapping[str, float]:
    return {**_content()["assumed"], **measured("").values, **measured().values}


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content

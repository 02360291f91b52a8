"""The stored index: one JSON file beside this module."""

from __future__ import annotations

import importlib.metadata
import json
from functools import cache
from pathlib import Path

from weft.core.strict_json import plain
from weft.index.records import Index

FILE = Path(__file__).with_name("index.json")
ENTRY_POINTS = "weft.parts"
"""The group of entry points through which installed packages add parts, as in `weft.core.registry`."""


@cache
def stored() -> Index:
    """The index of Weft's own parts, settings and presets, and of published models."""
    return Index.from_json(json.loads(FILE.read_text(encoding="utf-8")))


def written(index: Index) -> str:
    """The text of the file for an index, one record a line at most levels, so that changes can be read."""
    return json.dumps(plain(index), ensure_ascii=False, indent=1) + "\n"


def has_plugins() -> bool:
    """Whether installed packages add parts, which only the registry knows."""
    return bool(importlib.metadata.entry_points(group=ENTRY_POINTS))

"""A shrunken float64 twin of a configuration: the same structure, small enough to run every law on in seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.model import ModelConfig

MOST_REPEATS, MOST_TOKENS, MOST_WINDOW, LENGTH = 2, 64, 4, 6
"""Repeats of a block, ids of a vocabulary, numbers inside a mask's expression, and lengths at which a rotation changes,
so that a row of a dozen tokens crosses them."""

FACTORS = (64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""Divisors of the widths, largest first; the first that builds is taken."""


@dataclass(frozen=True)
class Twin:
    """The configuration and what was changed, in words."""

    config: ModelConfig
    changes: str


def shrink(config: ModelConfig) -> Twin:
    """The smallest twin that still builds.

    Widths (``d_...``) are divided by one factor, repeats cut to 2, the vocabulary to 64, windows inside masks to 4 and
    lengths at which a rotation changes to 6.
    """
    whole = config.dump()
    for factor in FACTORS:
        try:
            small = parse_part(("model",), _smaller(whole, factor))
            assert isinstance(small, ModelConfig)
            small.build()
        except (ConfigError, ValueError):
            continue
        widths = f"widths / {factor}" if _smaller(whole, factor) != _smaller(whole, 1) else "widths kept"
        words = (f"{widths}, at most {MOST_REPEATS} repeats of a block, {small.vocab_size} ids, windows of at most "
                 f"{MOST_WINDOW}, length-dependent rotations change at {LENGTH} tokens")
        return Twin(small, words)
    return Twin(config, "nothing: no smaller twin builds")


def _smaller(value: Any, factor: int, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _smaller(item, factor, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_smaller(item, factor, name) for item in value]
    if isinstance(value, str) and name == "mask":
        return re.sub(r"\d+", lambda number: str(min(int(number[0]), MOST_WINDOW)), value)
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    return _smaller_number(value, factor, name)


def _smaller_number(value: int, factor: int, name: str) -> int:
    if name.startswith("d_") and value % factor == 0:
        return value // factor
    limits = {"repeat": MOST_REPEATS, "vocab_size": MOST_TOKENS, "original": LENGTH, "original_length": LENGTH}
    return min(value, limits.get(name, value))

"""Suggestions for a name that stands for nothing: by family and by what it is, then by its spelling."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from weft.preset_files.models import published

NEAR = 0.8
"""Similarity (`difflib.SequenceMatcher.ratio`) from which a name is a misspelling."""
SHOWN = 8
"""Names of a list in a message."""


def name_hint(name: str, presets: Iterable[str]) -> str:
    """A hint with the published models of the family that ``name`` names, or the name that it misspells, or where all
    are listed.

    Args:
        name: that is not known.
        presets: further names.

    >>> name_hint("gptj", [])
    "Published models of that name: 'gpt-j-6b'."
    """
    own = sorted(presets)
    names = [*own, *published(), *(other for size in published().values() for other in size.also)]
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=NEAR)
    if near and _digits(near[0]) == _digits(name):
        return f"Did you mean {near[0]!r}?"
    word = _plain(name)
    meant = [size.name for size in published().values()
             if word and word in (_plain(size.family), _plain(size.name)[:len(word)])]
    if meant:
        more = f" and {len(meant) - SHOWN} more (weft list families)" if len(meant) > SHOWN else ""
        return f"Published models of that name: {', '.join(map(repr, meant[:SHOWN]))}{more}."
    if near:
        return f"Did you mean {near[0]!r}?"
    return f"Presets: {', '.join(own)}; `weft list families` shows published models."


def relative_hint(kind: str, formats: Iterable[str]) -> str:
    """A hint with the known model_type that ``kind`` misspells or is a version or variant of; empty where there is
    none: likeness of letters alone says nothing about what a model computes.

    >>> relative_hint("mistrall", ["mistral", "llama"])
    "Did you mean 'mistral'?"
    >>> relative_hint("qwen2_vl", ["llama", "qwen2"])
    "It is named after 'qwen2', which is known, and may differ from it."
    """
    known = sorted(formats)
    near = difflib.get_close_matches(kind, known, n=1, cutoff=NEAR)
    if near and _digits(near[0]) == _digits(kind):
        return f"Did you mean {near[0]!r}?"
    stems = [each for each in known if re.match(rf"{re.escape(each)}(?![a-z])", kind)]
    if stems:
        return f"It is named after {max(stems, key=len)!r}, which is known, and may differ from it."
    return ""


def _digits(name: str) -> list[str]:
    """The numbers in a name: another number is another model, and no misspelling."""
    return re.findall(r"\d+", name)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())

"""`catalogue`: the list of all registered parts and masks, plugins included."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from weft.core.layer import Layer, traits_of
from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY
from weft.index.records import Entry, require_known
from weft.laws.discovery import subject_of
from weft.masks import known_masks
from weft.masks.expression import usage

MASK = "mask"
CLOCK = "clock"
"""The field that every state of a layer has."""


def catalogue(only: str | None = None) -> list[Entry]:
    """The registered parts and masks, sorted by group and kind.

    Args:
        only: a group, or a kind in any group; None: all.

    Raises:
        InputError: there is no group and no kind of that name; the error names the nearest.
    """
    if only is not None:
        require_known(only, [*((part.group, part.kind) for part in REGISTRY.parts()),
                             *((MASK, mask.kind) for mask in known_masks())])
    parts = [part for part in REGISTRY.parts() if only in (None, part.group, part.kind)]
    entries = [_entry(part) for part in parts] + [entry for entry in _masks() if only in (None, MASK, entry.kind)]
    return sorted(entries, key=lambda entry: (entry.group, entry.kind))


def _entry(part: type[PartConfig]) -> Entry:
    modules = list(_built(part))
    traits = sorted({trait for module in modules for trait in traits_of(module)}, key=lambda trait: trait.name)
    return Entry(part.group, part.kind, part.kind, summary_of(part), part.about.source,
                 part.about.state_size or _fields(modules),
                 {trait.name.lower(): trait.value for trait in traits}, part.__module__,
                 part.acts() if part.group == "position" else "")  # type: ignore[attr-defined]


def _built(part: type[PartConfig]) -> Iterator[nn.Module]:
    """Small modules with the part, built from its examples."""
    for index, config in enumerate(part.examples()):
        subject = subject_of(config, f"{part.kind}.{index}", dtype=torch.float32)
        if subject is not None:
            yield subject.module


def _fields(modules: Iterable[nn.Module]) -> str:
    """The fields of the layers' states, for parts that do not describe their state; empty if there are none."""
    states = {module.state_type for module in modules if isinstance(module, Layer) and not module.state_type.composite}
    named = {state: [field.name for field in dataclasses.fields(state) if field.name != CLOCK] for state in states}
    return "; ".join(sorted(f"{state.__name__}: {', '.join(names)}" for state, names in named.items() if names))


def _masks() -> Iterator[Entry]:
    for mask in known_masks():
        yield Entry(MASK, mask.kind, usage(mask), summary_of(mask), mask.about.source, "", {}, mask.__module__, "")


def summary_of(described: type) -> str:
    """The first sentence of a docstring, or its first paragraph if that contains no full stop."""
    text = inspect.getdoc(described) if described.__doc__ else None
    paragraph = " ".join((text or "").split("\n\n")[0].split())
    for index, sign in enumerate(paragraph):
        ends = sign == "." and paragraph[index + 1:index + 2] in ("", " ")
        if ends and not paragraph[:index].endswith((".", "et al", "eq", "e.g", "i.e")):
            return paragraph[:index + 1]
    return paragraph

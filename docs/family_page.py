"""`family_page`: what the page of a family of published models shows, all of it computed from the family's data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import torch
from in_use import brief
from part_page import LENGTHS

from weft.core.base_model import built_empty
from weft.core.declarations import Trait
from weft.core.layer import traits_of
from weft.core.model import LanguageModel, Model, ModelConfig
from weft.core.part_config import PartConfig, parts_in
from weft.drawing.figure import Figure
from weft.families.canonical import canonical
from weft.families.family import Family, families
from weft.pictures.architecture import architecture_of
from weft.pictures.diagram import figure
from weft.preset_files.published_models import Size

NEAREST, MOST = 2, 6
"""Families that one is compared with, and differences that are shown of each."""
NO_EFFECT = frozenset({"dropout", "std", "eps", "labels", "base"})
"""Keys that tell no families apart; nor do whole numbers, which are sizes."""


@final
@dataclass(frozen=True)
class FamilyPage:
    """A page of a family.

    Attributes:
        size: the smallest published model, which is drawn and written out; of encoders the smallest with a head.
        config: its configuration, as a file.
        state: tokens and bytes of a row's state in bfloat16; empty for a model without one, or with a source's.
        parts: groups and kinds of its parts.
        differs: the nearest families, and what differs: key, own value, theirs.
    """

    family: Family
    size: Size
    figure: Figure
    config: Mapping[str, Any]
    state: tuple[tuple[int, int], ...]
    parts: tuple[tuple[str, str], ...]
    differs: tuple[tuple[str, tuple[tuple[str, Any, Any], ...]], ...]


def family_page(name: str) -> FamilyPage:
    """The page of the family of that name."""
    family = families()[name]
    size, config = _smallest(name)
    model = built_empty(config)
    return FamilyPage(family, size, figure(architecture_of(model, size.name), f"family-{name}"), brief(config),
                      _state(model), _kinds(config), tuple(_nearest(name)))


@cache
def _smallest(name: str) -> tuple[Size, ModelConfig]:
    family = families()[name]
    counted = [each for each in family.sizes if each.parameters] or family.sizes
    found = [(size, family.config(size)) for size in sorted(counted, key=lambda each: each.parameters or 0)]
    # Encoders of sentences are published without the head that shows what their family was trained for.
    return next((each for each in found if getattr(each[1], "head", None) is not None), found[0])


def _state(model: Model) -> tuple[tuple[int, int], ...]:
    if not isinstance(model, LanguageModel) or model.takes_source or Trait.BIDIRECTIONAL in traits_of(model):
        return ()
    horizon = {length: length if Trait.DECLARED_LENGTH in traits_of(model) else None for length in LENGTHS}
    return tuple((length, model.init_state(1, capacity=length, horizon=horizon[length], dtype=torch.bfloat16).nbytes())
                 for length in LENGTHS)


def _kinds(config: ModelConfig) -> tuple[tuple[str, str], ...]:
    """Groups and kinds of a configuration's parts, in order, each once."""
    found = ((part.group, part.kind) for part in parts_in(config) if part.group and part.kind != "none")
    return tuple(dict.fromkeys(found))


def _nearest(name: str) -> Iterator[tuple[str, tuple[tuple[str, Any, Any], ...]]]:
    """The families from which this one differs in the fewest keys."""
    own = _facts(name)
    found = []
    for other in families():
        if other != name and families()[other].sizes:
            theirs = _facts(other)
            keys = [key for key in {**own, **theirs} if own.get(key) != theirs.get(key)]
            found.append((len(keys), other, tuple((key, own.get(key), theirs.get(key)) for key in keys)))
    for _, other, differences in sorted(found, key=lambda each: each[:2])[:NEAREST]:
        yield other, differences


@cache
def _facts(name: str) -> Mapping[str, Any]:
    """The facts of a family's smallest model, sizes left out: each key of its first block and of what stands around the
    blocks, with its value."""
    data = canonical(_smallest(name)[1])
    blocks = data.pop("blocks", [{}])
    return dict(_flat({**data, "block": blocks[0]}, ""))


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, PartConfig):
        value = value.dump()
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key not in NO_EFFECT:
                yield from _flat(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _flat(each, f"{path}.{index}")
    elif isinstance(value, bool | str | float) or value is None:
        yield path, value


__all__ = ["MOST", "FamilyPage", "family_page"]

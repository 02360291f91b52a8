"""Known masks by kind. A plugin's masks join with ``@register_mask``, as its parts do with ``@register``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, TypeVar

from weft.core.errors import ConfigError, nearest
from weft.core.part_config import PartConfig, parts_in
from weft.core.registry import REGISTRY
from weft.masks.base import Mask

M = TypeVar("M", bound=Mask)


MASKS: dict[str, type[Mask]] = {}
"""Registered masks by their kind."""


def register_mask(mask: type[M]) -> type[M]:
    """Class decorator: make a mask known to configurations and ``list``.

    Raises:
        ConfigError: when another class has that kind, or the kind is not a name.
    """
    if not mask.kind.isidentifier():
        raise ConfigError([f"the mask class {mask.__qualname__} has the kind {mask.kind!r}, which is not a name. "
                           "Set `kind` to letters, digits and underscores."])
    other = MASKS.get(mask.kind)
    if other is not None and (other.__module__, other.__qualname__) != (mask.__module__, mask.__qualname__):
        raise ConfigError([f"the mask {mask.kind!r} is defined by {other.__module__} and by {mask.__module__}. "
                           "Give one of them another kind."])
    MASKS[mask.kind] = mask
    return mask


def mask_of_kind(kind: str) -> type[Mask]:
    """The mask of that kind.

    Raises:
        KeyError: with a hint that names the nearest kind.
    """
    if kind not in MASKS:
        REGISTRY.discover()
    if kind not in MASKS:
        raise KeyError(f"no mask is called {kind!r}. {nearest(kind, MASKS)}")
    return MASKS[kind]


def known_masks() -> list[type[Mask]]:
    """Every mask class, by kind."""
    REGISTRY.discover()
    return [MASKS[kind] for kind in sorted(MASKS)]


def usage(mask: type[Mask]) -> str:
    """How the mask is written: its kind and the names of its arguments."""
    arguments = [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name if p.default is p.empty
                 else f"{p.name}={p.default!r}" for p in inspect.signature(mask).parameters.values()]
    return f"{mask.kind}({', '.join(arguments)})" if arguments else mask.kind


def parts_and_masks(config: Any) -> Iterator[PartConfig | Mask]:
    """Every part in a configuration, every mask in a field of one, and the masks that a mask combines."""
    for part in parts_in(config):
        yield part
        waiting = [value for _, value in part if isinstance(value, Mask)]
        while waiting:
            mask = waiting.pop()
            yield mask
            waiting += mask.parts()

"""Known masks by kind. A plugin's masks join with ``@register_mask``, as its parts do with ``@register``."""

from __future__ import annotations

import inspect
from typing import TypeVar

from weft.core.errors import ConfigError, nearest
from weft.core.registry import REGISTRY
from weft.masks.base import Mask

M = TypeVar("M", bound=Mask)


class MaskRegistry:
    """Mask classes by their kind."""

    def __init__(self) -> None:
        self._masks: dict[str, type[Mask]] = {}

    def add(self, mask: type[Mask]) -> None:
        """Register a mask class under its kind.

        Raises:
            ConfigError: when another class has that kind, or the kind is not a name.
        """
        if not mask.kind.isidentifier():
            raise ConfigError([f"the mask class {mask.__qualname__} has the kind {mask.kind!r}, which is not a name. "
                               "Set `kind` to letters, digits and underscores."])
        other = self._masks.get(mask.kind)
        if other is not None and (other.__module__, other.__qualname__) != (mask.__module__, mask.__qualname__):
            raise ConfigError([f"the mask {mask.kind!r} is defined by {other.__module__} and by {mask.__module__}. "
                               "Give one of them another kind."])
        self._masks[mask.kind] = mask

    def get(self, kind: str) -> type[Mask]:
        """The mask of that kind.

        Raises:
            KeyError: with a hint that names the nearest kind.
        """
        if kind not in self._masks:
            REGISTRY.discover()
        if kind not in self._masks:
            raise KeyError(f"no mask is called {kind!r}. {nearest(kind, self._masks)}")
        return self._masks[kind]

    def all(self) -> list[type[Mask]]:
        """Every mask, by kind."""
        REGISTRY.discover()
        return [self._masks[kind] for kind in sorted(self._masks)]


MASKS = MaskRegistry()


def register_mask(mask: type[M]) -> type[M]:
    """Class decorator: make a mask known to configurations and ``list``."""
    MASKS.add(mask)
    return mask


def known_masks() -> list[type[Mask]]:
    """Every mask class, by kind: each has ``kind``, ``source`` and a docstring."""
    return MASKS.all()


def usage(mask: type[Mask]) -> str:
    """How the mask is written: its kind and the names of its arguments."""
    arguments = [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name if p.default is p.empty
                 else f"{p.name}={p.default!r}" for p in inspect.signature(mask).parameters.values()]
    return f"{mask.kind}({', '.join(arguments)})" if arguments else mask.kind

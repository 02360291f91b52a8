"""`Points`: what probes ask of one part while they are on (see `weft.core.probes`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

from torch import Tensor

Taker: TypeAlias = Callable[[Tensor], None]
"""What is called with each tensor of a point."""


@final
class Points:
    """The points of one part that are asked for. A part reads its own as `Part.asked` and hands out what it has::

        if self.asked is not None and "weights" in self.asked:
            self.asked.give("weights", weights)
    """

    def __init__(self) -> None:
        self._takers: dict[str, list[Taker]] = {}

    def __contains__(self, point: str) -> bool:
        """Whether a probe asks for ``point``, so that it is worth making."""
        return point in self._takers

    def __len__(self) -> int:
        """How many points are asked for."""
        return len(self._takers)

    def give(self, point: str, value: Tensor) -> None:
        """Hand ``value`` to the probes that ask for ``point``, if there are any."""
        for take in self._takers.get(point, ()):
            take(value)

    def add(self, point: str, taker: Taker) -> None:
        """Ask for ``point``."""
        self._takers.setdefault(point, []).append(taker)

    def remove(self, point: str, taker: Taker) -> None:
        """Ask no more."""
        self._takers[point].remove(taker)
        if not self._takers[point]:
            del self._takers[point]

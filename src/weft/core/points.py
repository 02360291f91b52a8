"""`Points`: the values of one part that active probes read (see `weft.core.probes`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

from torch import Tensor

Taker: TypeAlias = Callable[[Tensor], None]
"""A function that is called with each tensor of a point."""


@final
class Points:
    """The points of one part that probes read. The part has them as `Adjustable.asked` and passes each value on::

        if self.asked is not None and "weights" in self.asked:
            self.asked.give("weights", weights)
    """

    def __init__(self) -> None:
        self._takers: dict[str, list[Taker]] = {}

    def __contains__(self, point: str) -> bool:
        """Whether a probe reads ``point``, so that its value has to be computed."""
        return point in self._takers

    def __len__(self) -> int:
        """The number of points that are read."""
        return len(self._takers)

    def give(self, point: str, value: Tensor) -> None:
        """Pass ``value`` to the probes that read ``point``, if there are any."""
        for take in self._takers.get(point, ()):
            take(value)

    def add(self, point: str, taker: Taker) -> None:
        """Call ``taker`` with each value of ``point`` from now on."""
        self._takers.setdefault(point, []).append(taker)

    def remove(self, point: str, taker: Taker) -> None:
        """Undo `add`."""
        self._takers[point].remove(taker)
        if not self._takers[point]:
            del self._takers[point]

"""The parts and masks that a configuration names, for what holds for both, such as where their code is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.core.part_config import PartConfig, parts_in
from weft.masks.base import Mask


def parts_and_masks(config: Any) -> Iterator[PartConfig | Mask]:
    """Every part in a configuration, every mask in a field of one, and the masks that a mask combines."""
    for part in parts_in(config):
        yield part
        waiting = [value for _, value in part if isinstance(value, Mask)]
        while waiting:
            mask = waiting.pop()
            yield mask
            waiting += mask.parts()

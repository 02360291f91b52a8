"""Masks that differ from head to head."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, final

import torch
from torch import Tensor

from weft.core.errors import ConfigError
from weft.core.part_config import About
from weft.masks.base import Mask
from weft.masks.registry import register_mask
from weft.masks.terms import AMOUNTS, Band, Key, Lookahead, Pattern, Query


@register_mask
@final
@dataclass(frozen=True, repr=False, init=False)
class PerHead(Mask):
    """Head h follows mask h mod n of the n ``masks``.

    Attributes:
        masks: the masks, in the order of heads.
    """

    kind: ClassVar[str] = "per_head"
    about = About(
        source="Child et al. 2019, section 4.2; Beltagy et al. 2020, section 3.1 (dilation by head)",
        equation=r"A_h(i) = A^{(h \bmod n)}(i)",
        differs=(("strided", "gives different heads different masks, where any other mask is the same for all."),))

    masks: tuple[Mask, ...]

    def __init__(self, *masks: Mask) -> None:
        for mask in masks:
            if not isinstance(mask, Mask):
                raise ConfigError([f"per_head: {mask!r} is not a mask. Give one mask for each head, such as "
                                   "per_head(window(4), strided(4))."])
        if len(masks) < 2:
            raise ConfigError([f"per_head: {len(masks)} masks, and heads differ only with two or more. Give one for "
                               "each head, such as per_head(window(4), strided(4))."])
        object.__setattr__(self, "masks", tuple(masks))

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        turn = head % len(self.masks)
        found = self.masks[0].rule(query, key, head)
        for index, mask in enumerate(self.masks[1:], start=1):
            found = torch.where(turn == index, mask.rule(query, key, head), found)
        return found

    def lookahead(self) -> Lookahead:
        return max((mask.lookahead() for mask in self.masks), key=AMOUNTS.index)

    def reach(self) -> int | None:
        bounds = [mask.reach() for mask in self.masks]
        known = [bound for bound in bounds if bound is not None]
        return max(known) if len(known) == len(bounds) else None

    def band(self) -> Band:
        return reduce(Band.join, (mask.band() for mask in self.masks))

    def heads(self) -> int:
        return math.lcm(len(self.masks), *(mask.heads() for mask in self.masks))

    def pattern(self) -> Pattern | None:
        first = self.masks[0].pattern()
        return first if all(mask.pattern() == first for mask in self.masks) else None

    def parts(self) -> tuple[Mask, ...]:
        return self.masks

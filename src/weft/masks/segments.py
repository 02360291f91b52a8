"""Segments with a memory: the keys of the query's segment and of some tokens before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from weft.core.part_config import About
from weft.masks.base import Mask
from weft.masks.registry import register_mask
from weft.masks.terms import Key, Lookahead, Query, require_count


@register_mask
@final
@dataclass(frozen=True, repr=False)
class Segments(Mask):
    """The earlier keys of the query's segment of ``size`` tokens and the ``memory`` keys before it:
    size floor(i / size) - memory <= j <= i, counted from the begin of the document.

    Segments are counted from the document's first token, so a sequence run in pieces of any size gives the same result.
    In the released code each call is a segment; with ``same_length`` its mask is ``window(memory)``.

    Attributes:
        size: tokens of a segment.
        memory: tokens before the segment that its queries see.
    """

    kind: ClassVar[str] = "segments"
    about = About(
        source="Dai et al. 2019 (Transformer-XL), section 3.2",
        equation=r"A(i) = \left\{ j : s \lfloor i / s \rfloor - m \le j \le i \right\}",
        differs=(("window", "how far a query sees depends on its place in the segment."),
                 ("block", "sees m tokens before its block as well.")))

    size: int
    memory: int

    def __post_init__(self) -> None:
        require_count(self.kind, "size", self.size, 1, "a segment holds at least the query's own key")
        require_count(self.kind, "memory", self.memory, 0, "a number of keys cannot be negative")

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        index = query.order - query.begin
        first = query.order - index % self.size - self.memory
        return (key.order <= query.order) & (key.order >= first)

    def lookahead(self) -> Lookahead:
        return "none"

    def reach(self) -> int:
        return self.size + self.memory

    def borders(self) -> tuple[int, ...]:
        return (self.size, self.size + self.memory)

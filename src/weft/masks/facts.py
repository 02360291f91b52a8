"""Masks that read facts of tokens, which a call gives by name in ``span.facts`` (`weft.core.ticks.Facts`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from weft.core.part_config import About
from weft.masks.base import Mask
from weft.masks.registry import register_mask
from weft.masks.terms import Key, Query

TYPES, GLOBALS = "types", "globals"
"""Facts: the type of a token (its segment, its modality), and whether it is a global token (not 0)."""


@register_mask
@final
@dataclass(frozen=True, repr=False)
class SameType(Mask):
    """The keys of the query's type, by the fact ``types``: such as ``causal & same_type`` in a text of several
    speakers."""

    kind: ClassVar[str] = "same_type"
    about = About(
        source="Bugliarello et al. 2021, section 3 (intra-modal attention)",
        equation=r"A(i) = \{ j : \operatorname{type}(j) = \operatorname{type}(i) \}",
        differs=(("documents", "types may alternate within a document."),))

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return query.facts[TYPES] == key.facts[TYPES]

    def reads(self) -> frozenset[str]:
        return frozenset({TYPES})


@register_mask
@final
@dataclass(frozen=True, repr=False)
class Globals(Mask):
    """Global tokens, marked in each row by the fact ``globals``, attend to all keys, and all queries attend to them.

    `global` names the same tokens of every document; Longformer chooses them by the task, for instance the tokens of a
    question.
    """

    kind: ClassVar[str] = "globals"
    about = About(
        source="Beltagy et al. 2020, section 3.1 (global attention on chosen tokens)",
        equation=r"A(i) = \{ j : g_i = 1 \text{ or } g_j = 1 \}",
        differs=(("global", "its tokens are marked in each row by the call."),))

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return (query.facts[GLOBALS] != 0) | (key.facts[GLOBALS] != 0)

    def reads(self) -> frozenset[str]:
        return frozenset({GLOBALS})

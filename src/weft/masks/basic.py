"""Causal, bidirectional, prefix, documents, padding.

Masks that read facts of tokens, which a call gives by name in ``span.facts`` (`weft.core.ticks.Facts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from weft.core.part_config import About
from weft.masks.base import Mask
from weft.masks.expression import register_mask
from weft.masks.terms import Key, Lookahead, Pattern, Query


@register_mask
@final
@dataclass(frozen=True, repr=False)
class Causal(Mask):
    """The query's own key and all earlier ones: key.order <= query.order."""

    kind: ClassVar[str] = "causal"
    about = About(
        source="Vaswani et al. 2017, section 3.2.3", equation=r"A(i) = \{ j \le i \}",
        differs=(("bidirectional", "later keys are hidden."), ("window", "has no limit of distance.")))

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return key.order <= query.order

    def lookahead(self) -> Lookahead:
        return "none"

    def pattern(self) -> Pattern:
        return Pattern(causal=True)


@register_mask
@final
@dataclass(frozen=True, repr=False)
class Bidirectional(Mask):
    """Every key."""

    kind: ClassVar[str] = "bidirectional"
    about = About(
        source="Devlin et al. 2019, section 3", equation=r"A(i) = \{j\}",
        differs=(("causal", "later keys are visible too."),))

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return torch.ones_like(key.order, dtype=torch.bool)

    def pattern(self) -> Pattern:
        return Pattern()


@register_mask
@final
@dataclass(frozen=True, repr=False)
class Prefix(Mask):
    """The keys of the document's prefix: query.begin <= key.order < query.prefix_end.

    Prefix language models write ``causal | prefix``: the prefix attends to itself in both directions, the rest
    causally.
    """

    kind: ClassVar[str] = "prefix"
    about = About(
        source="Raffel et al. 2020, section 3.2.1; Dong et al. 2019, section 2.2",
        equation=r"A(i) = \{ j : \operatorname{begin}(i) \le j < \text{end of prefix}(i) \}",
        differs=(("documents", "shows the beginning of the document alone."),
                 ("causal", "with `causal | prefix` the prefix is read in both directions.")))

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return (key.order >= query.begin) & (key.order < query.prefix_end)

    def lookahead(self) -> Lookahead:
        return "prefix"


@register_mask
@final
@dataclass(frozen=True, repr=False)
class Documents(Mask):
    """The keys of the query's document: key.begin = query.begin.

    Where keys do not keep the begin of their document, key.order >= query.begin, which is the same under a causal mask.
    """

    kind: ClassVar[str] = "documents"
    about = About(
        source="Krell et al. 2021, section 3.2 (packing without cross-contamination)",
        equation=r"A(i) = \{ j : \operatorname{begin}(j) = \operatorname{begin}(i) \}",
        differs=(("padding", "tells documents of one row apart, where padding tells tokens from none."),
                 ("causal", "says nothing about the order.")))

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return key.order >= query.begin if key.begin is None else key.begin == query.begin

    def pattern(self) -> Pattern:
        return Pattern(documents=True)


@register_mask
@final
@dataclass(frozen=True, repr=False)
class Padding(Mask):
    """The keys that exist, whether the padding is on the left or on the right."""

    kind: ClassVar[str] = "padding"
    about = About(
        source="Vaswani et al. 2017, section 3.2.3", equation=r"A(i) = \{ j : j \text{ is a token} \}",
        differs=(("documents", "tells tokens from none, where documents tells documents apart."),))

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return torch.ones_like(key.order, dtype=torch.bool) if key.valid is None else key.valid

    def pattern(self) -> Pattern:
        return Pattern(padding=True)


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

"""Causal, bidirectional, prefix, documents, padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from weft.core.part_config import About
from weft.masks.base import Mask
from weft.masks.registry import register_mask
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

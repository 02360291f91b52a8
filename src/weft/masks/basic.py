"""Causal, bidirectional, prefix, documents, padding; masks that read facts of tokens, which a call gives by name in
``span.facts`` (`weft.core.clock.Facts`); windows and segments, whose sizes are in tokens and count the query's own key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from weft.core.part_config import About
from weft.masks.base import Mask
from weft.masks.expression import register_mask
from weft.masks.terms import Band, Key, Lookahead, Pattern, Query, require_count


@register_mask
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


@register_mask
@dataclass(frozen=True, repr=False)
class Window(Mask):
    """The ``size`` most recent keys, the query's own included: query.order - size < key.order <= query.order.

    This is how Hugging Face's code counts Mistral's W. Mistral's own prefill keeps W + 1; Longformer's causal half, for
    its attention_window w, is ``window(w/2 + 1)``; Child et al.'s paper has l + 1 keys where its code has l.

    Attributes:
        size: keys of a query, its own included, in tokens.
    """

    kind: ClassVar[str] = "window"
    about = About(
        source="Beltagy et al. 2020, section 3.1; Jiang et al. 2023, section 2",
        equation=r"A(i) = \{ j : i - w < j \le i \}",
        differs=(("causal", "forgets keys at a distance of w or more, so that its state is bounded."),
                 ("symmetric_window", "later keys are hidden."),
                 ("segments", "every query sees as many keys.")))

    size: int

    def __post_init__(self) -> None:
        require_count(self.kind, "size", self.size, 1, "a window holds at least the query's own key")

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return (key.order <= query.order) & (key.order > query.order - self.size)

    def lookahead(self) -> Lookahead:
        return "none"

    def reach(self) -> int:
        return self.size

    def window(self) -> int:
        return self.size

    def pattern(self) -> Pattern:
        return Pattern(causal=True, size=self.size)


@register_mask
@dataclass(frozen=True, repr=False)
class SymmetricWindow(Mask):
    """``left`` keys before the query, its own, and ``right`` after, at distances of d = ``dilation``: j - i in
    {-left d, ..., -d, 0, d, ..., right d}.

    Longformer's attention_window w is ``symmetric_window(w/2, w/2)``, dilated ``symmetric_window(w/2, w/2, d)``.

    Attributes:
        left: keys before the query.
        right: keys after the query.
        dilation: tokens from one key to the next.
    """

    kind: ClassVar[str] = "symmetric_window"
    about = About(
        source="Beltagy et al. 2020, section 3.1, figures 2b and 2c",
        equation=r"A(i) = \{ j : j - i \in \{-l d, \ldots, -d, 0, d, \ldots, r d\} \}",
        differs=(("window", "sees later keys as well."),))

    left: int
    right: int
    dilation: int = 1

    def __post_init__(self) -> None:
        require_count(self.kind, "left", self.left, 0, "a number of keys cannot be negative")
        require_count(self.kind, "right", self.right, 0, "a number of keys cannot be negative")
        require_count(self.kind, "dilation", self.dilation, 1, "keys are at least one token apart")

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        ahead, step = key.order - query.order, self.dilation
        near = (ahead >= -self.left * step) & (ahead <= self.right * step)
        return near if step == 1 else near & (ahead % step == 0)

    def lookahead(self) -> Lookahead:
        return "any" if self.right else "none"

    def reach(self) -> int:
        return self.left * self.dilation + 1

    def window(self) -> int:
        return max(self.left, self.right) * self.dilation + 1

    def band(self) -> Band:
        return Band(self.reach(), self.right * self.dilation)

    def pattern(self) -> Pattern | None:
        if self.dilation > 1 and (self.left or self.right):
            return None
        size = self.left + 1
        return Pattern(size=size, ahead=self.right) if self.right else Pattern(causal=True, size=size)

    def __repr__(self) -> str:
        return f"{self.kind}({self.left}, {self.right}{f', {self.dilation}' if self.dilation > 1 else ''})"


@register_mask
@dataclass(frozen=True, repr=False)
class Dilated(Mask):
    """``size`` keys at distances of d = ``dilation``, the query's own the last: i - j in {0, d, ..., (size - 1) d}.

    Attributes:
        size: keys of a query, its own included.
        dilation: tokens from one key to the next.
    """

    kind: ClassVar[str] = "dilated"
    about = About(
        source="Beltagy et al. 2020, section 3.1, figure 2c (its causal half)",
        equation=r"A(i) = \{ i - d m : m = 0, \ldots, n - 1 \}",
        differs=(("window", "leaves d - 1 keys out between any two, and so reaches d times as far."),
                 ("strided", "ends after n keys.")))

    size: int
    dilation: int

    def __post_init__(self) -> None:
        require_count(self.kind, "size", self.size, 1, "a window holds at least the query's own key")
        require_count(self.kind, "dilation", self.dilation, 1, "keys are at least one token apart")

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        back = query.order - key.order
        return (back >= 0) & (back < self.reach()) & (back % self.dilation == 0)

    def lookahead(self) -> Lookahead:
        return "none"

    def reach(self) -> int:
        return (self.size - 1) * self.dilation + 1

    def window(self) -> int:
        return self.reach()

    def pattern(self) -> Pattern | None:
        return Pattern(causal=True, size=self.size) if self.dilation == 1 else None


@register_mask
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

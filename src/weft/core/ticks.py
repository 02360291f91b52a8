"""`Ticks` and `Keys`: the order, document and position of each token of a call, and of each key that it may attend to.

Masks read order, position schemes read positions (or explicit coordinates).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.compiling import compiler_traces
from weft.core.history import History, gathered

R = TypeVar("R")
OWN = "own"
"""The layout of keys that are those of the chunk itself."""


class Facts(NamedTuple):
    """The facts of tokens that a call can look up: those of its own chunk and, with a state, of earlier tokens.

    Facts are whole numbers that a call gives for each of its tokens by name (types, global tokens), which masks read.
    A fact that a call does not give is 0.

    Attributes:
        names: of the n facts, in the order in which they are stacked.
        chunk: [B,T,n]; arbitrary beyond each row's count, where no key is valid.
        start: the order of the chunk's first token, [B,1]; None: 0.
        earlier: before the chunk; None without a state.
    """

    names: tuple[str, ...]
    chunk: Int64[Tensor, "B T n"]
    start: Int64[Tensor, "B 1"] | None
    earlier: History | None

    def at(self, name: str, order: Int64[Tensor, "#B N"]) -> Int64[Tensor, "#B N"]:
        """The fact of the tokens of these orders; arbitrary for a token that the chunk and the history do not have."""
        if name not in self.names:
            return torch.zeros_like(order)
        column, steps = self.names.index(name), self.chunk.shape[1]
        earlier = None if self.earlier is None else self.earlier.at(order)[..., column]
        if steps == 0:
            return torch.zeros_like(order) if earlier is None else earlier
        index = order if self.start is None else order - self.start
        current = gathered(self.chunk[..., column], index.clamp(0, steps - 1))
        return current if earlier is None else torch.where(index >= 0, current, earlier)


@dataclass(frozen=True)
class Ticks:
    """The order, document and position of each token of a chunk. The leading dimension is B, or 1 if all rows agree.

    Attributes:
        order: the token's index in its row, counted over all calls.
        begin: the order of the first token of its document.
        prefix_end: the order at which its document's prefix ends.
        length: of its document, in tokens: the state's horizon, or without a state the declared or actual length.
        coordinates: explicit positions [B,T] or [B,T,n]; None: ``order - begin``.
        valid: False for tokens beyond the row's count; None if every token counts.
        packed: whether a document may have begun after a row's first token, so that documents must be kept apart.
        facts: of these tokens and earlier ones; None where no call gave any.
        memo: results that layers share (`once`).
    """

    order: Int64[Tensor, "#B T"]
    begin: Int64[Tensor, "#B T"]
    prefix_end: Int64[Tensor, "#B T"]
    length: Int64[Tensor, "#B T"]
    coordinates: Tensor | None
    valid: Bool[Tensor, "B T"] | None
    packed: bool
    facts: Facts | None = None
    memo: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, key: Hashable, work: Callable[[], R]) -> R:
        """The result of ``work()``, computed once a call for each ``key`` and shared by all layers: rotary tables,
        masks. It may depend on these ticks and the key alone."""
        # The compiler eliminates common work itself, and cannot trace a write to the memo inside a checkpointed block.
        if compiler_traces():
            return work()
        if key not in self.memo:
            self.memo[key] = work()
        result: R = self.memo[key]
        return result

    @property
    def position(self) -> Tensor:
        """The coordinates if the call gave them, else the index within the document."""
        return self.order - self.begin if self.coordinates is None else self.coordinates

    def fact(self, name: str, order: Int64[Tensor, "#B N"]) -> Int64[Tensor, "#B N"]:
        """The fact of this name for the tokens of these orders, in the chunk or before it; 0 if it was not given."""
        return torch.zeros_like(order) if self.facts is None else self.facts.at(name, order)

    def starts(self) -> Bool[Tensor, "#B T"]:
        """True where a document begins."""
        return self.order == self.begin


@dataclass(frozen=True)
class Keys:
    """The order, document and position of each key that a chunk's queries may attend to. The leading dimension is B,
    or 1 if all rows agree.

    Attributes:
        order: the key's index in its row, counted over all calls.
        position: its position (coordinate) as position schemes read it.
        begin: the order at which its document began; None if it is not stored, as only causal masks allow.
        valid: False for slots without a key; None if every slot has one.
        layout: a name; keys of one call with the same name agree in order, begin and valid. None: no name.
        offset: the index of the chunk's own first token, if the chunk's other tokens follow it and the keys before it
            are in order, apart from a document's first tokens that a state stores separately; otherwise None.
    """

    order: Int64[Tensor, "#B S"]
    position: Tensor  # [#B,S] or [#B,S,n]
    begin: Int64[Tensor, "#B S"] | None = None
    valid: Bool[Tensor, "#B S"] | None = None
    layout: Hashable = None
    offset: int | None = None

    @staticmethod
    def of(ticks: Ticks) -> Keys:
        """The chunk's own tokens as keys."""
        return ticks.once("own keys", lambda: Keys(ticks.order, ticks.position, ticks.begin, ticks.valid, OWN, 0))

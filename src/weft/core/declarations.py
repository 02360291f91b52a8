"""`Declarations`: what a part says of itself, so that analyses, laws and training need not know its class.

Everything has a default that is right for a part with nothing to say. A plugin's part that overrides what concerns it
is counted, planned, checked and trained like Weft's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal, Protocol, TypeAlias

from torch import Tensor

from weft.core.points import Points

Kept: TypeAlias = Literal["everything", "costly", "inputs"]
"""What is kept of activations for the backward pass: all that it wants; only what is not cheap to make again; or of
each part between two boundaries only its input, and it is run again."""

NONE: Mapping[str, str] = MappingProxyType({})
NO_FACTS: Mapping[str, int | None] = MappingProxyType({})


class Pairs(Protocol):
    """Which pairs of a query and a key something is worked out for, such as a mask; equal and hashable by value."""

    def share(self, steps: int) -> float:
        """The share of all pairs, in a document of ``steps`` tokens, that it is worked out for."""

    def __hash__(self) -> int:
        """Equal for equal rules."""


class Declarations:
    """What a part may say of itself. Each concerns the part alone and not those in it, unless it says otherwise."""

    role: ClassVar[str] = ""
    """What its numbers, operations and memory are listed under: "attention scores", "norms", "feed-forward", ...
    Empty: what the part that holds it says (`child_roles`), or else that part's own."""

    prefix: ClassVar[str] = ""
    """Put before the roles of the parts in it, and what its own numbers are listed under: "encoder"."""

    points: ClassVar[tuple[str, ...]] = ()
    """Names of what it can show to a probe besides its output (`weft.core.probes`)."""

    asked: Points | None = None
    """Those of its points that probes ask for; None while there is no probe."""

    dropout_rate: float = 0.0
    """The probability with which it drops something in training. It is read in every call, so that a part whose rate
    is set to 0 drops nothing."""

    kept_activations: Kept | None = None
    """What is kept for the backward pass of the parts in it, which are boundaries where it can begin again; None for
    a part without such boundaries. Training sets it."""

    def child_roles(self) -> Mapping[str, str]:
        """Roles of modules inside, by their path from here, that do not say theirs themselves."""
        return NONE

    def attended(self) -> Pairs | None:
        """Which pairs of a query and a key the part's own operations go over: a mask. Operators that cannot leave pairs
        out go over all of them. None: its operations do not go over pairs."""
        return None

    def facts(self) -> Mapping[str, int | None]:
        """The facts of tokens that it reads (`weft.core.ticks.Facts`), by name, each with the number of most recent
        tokens, the newest included, of which it reads it; None: all."""
        return NO_FACTS

    def idle_parameters(self) -> int:
        """Numbers among its parameters and those of the parts in it that one token does not use: experts that it does
        not choose."""
        return 0

    def source_width(self) -> int | None:
        """Features of the encoded source (`weft.core.span.Memory`) that it reads; None when it reads none."""
        return None

    def borders(self) -> tuple[int, ...]:
        """Lengths, in tokens, at which it begins to compute otherwise: how far its window or convolution reaches, the
        chunk of its scan. The laws run past the longest in a model."""
        return ()

    def same_dtype(self) -> tuple[Tensor, ...]:
        """Own parameters and buffers that no cast changes: numbers that a configuration fixes, counts."""
        return ()

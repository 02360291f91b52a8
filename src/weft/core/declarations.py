"""`Declarations`: what a part declares about itself, so that analyses, laws and training do not depend on its class.

Everything has a default that is right for a part that declares nothing. A plugin's part that overrides what applies to
it is counted, planned, checked and trained like Weft's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Literal, Protocol, TypeAlias, final

from torch import Tensor

from weft.core.points import Points

Kept: TypeAlias = Literal["everything", "costly", "inputs"]
"""Which activations are kept for the backward pass: all that it reads; only those that are not cheap to recompute; or
only the input of each part between two boundaries, which is then run again."""

NONE: Mapping[str, str] = MappingProxyType({})
NO_FACTS: Mapping[str, int | None] = MappingProxyType({})


class Pairs(Protocol):
    """The pairs of a query and a key that an operation computes, for example a mask; equal and hashable by value."""

    def share(self, steps: int) -> float:
        """The share of all pairs, in a document of ``steps`` tokens, that are among them."""

    def widths(self) -> Mapping[str, int]:
        """How far each of its windows reaches from the query, in tokens, the query's own included, by what the window
        is called."""

    def places(self) -> Mapping[str, int]:
        """The last of the tokens that each of its rules names by their place in a document, counted from 0, by what the
        rule is called."""

    def undeclared(self) -> int:
        """Pairs of a short document at which a head differs from the one that it declares to be alike; 0 if its
        declaration is right."""

    def __hash__(self) -> int:
        """A hash that is equal for equal rules."""


@final
@dataclass(frozen=True)
class WidthRoles:
    """What of a part follows the width of the model, besides its linear maps, vectors and tables, whose roles are known
    from their shapes (`weft.models.width_transfer`). Its matrices start with a deviation that falls with the root of
    their inputs, or with a constant one where they are among ``outputs``; its vectors start independently of the width.

    Attributes:
        products: attributes by which the part multiplies products of two of its vectors, each with their number of
            features, such as the scale of attention's scores.
        outputs: its own matrices [outputs, width] from the width to the model's outputs, each with the attribute by
            which the part multiplies their inputs or outputs.
        matrices: its own matrices [..., outputs, inputs] that multiply vectors as linear maps do.
    """

    products: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    matrices: tuple[str, ...] = ()


class Declarations:
    """What a part may declare. Each declaration covers the part alone and not those in it, unless stated otherwise."""

    role: ClassVar[str] = ""
    """The heading under which its parameters, operations and memory are listed: "attention scores", "norms",
    "feed-forward", ... Empty: the heading that the enclosing part gives it (`child_roles`), or else that part's."""

    prefix: ClassVar[str] = ""
    """A word before the roles of the parts in it, and the heading of its own parameters: "encoder"."""

    points: ClassVar[tuple[str, ...]] = ()
    """Names of the values that a probe can read besides its output (`weft.core.probes`)."""

    asked: Points | None = None
    """Those of its points that probes currently read; None without a probe."""

    dropout_rate: float = 0.0
    """The probability with which it drops something in training. It is read in every call, so that a part whose rate
    is set to 0 drops nothing."""

    kept_activations: Kept | None = None
    """Which activations are kept for the backward pass of the parts in it, at whose inputs recomputation can start;
    None for a part without such boundaries. Training sets it."""

    holds_table: ClassVar[bool] = False
    """Whether its own parameters are tables of which rows are looked up, such as vectors of positions: optimisers treat
    them as they do embeddings."""

    def child_roles(self) -> Mapping[str, str]:
        """The roles of modules inside that declare none themselves, by their path from here."""
        return NONE

    def attended(self) -> Pairs | None:
        """The pairs of a query and a key that the part's own operations need: a mask. Operators that cannot leave pairs
        out compute all of them. None: its operations do not work on pairs."""
        return None

    def facts(self) -> Mapping[str, int | None]:
        """The facts of tokens that it reads (`weft.core.ticks.Facts`), by name, each with the number of most recent
        tokens, the newest included, of which it reads it; None: all."""
        return NO_FACTS

    def idle_parameters(self) -> int:
        """The number of parameters, in it and the parts in it, that one token does not use: those of experts to which
        it is not routed."""
        return 0

    def source_width(self) -> int | None:
        """Features of the encoded source (`weft.core.span.Memory`) that it reads; None if it reads none."""
        return None

    def borders(self) -> tuple[int, ...]:
        """Lengths, in tokens, beyond which it computes in another way: the reach of its window or convolution, the
        chunk of its scan. The laws run past the longest in a model."""
        return ()

    def width_roles(self) -> WidthRoles | None:
        """What of it follows the width of the model, so that it can be in a model whose settings transfer from one
        width to another (muP); None: it is not known, and such a model is refused. A subclass may compute something
        else, so this counts only where its own class defines it."""
        return None

    def remarks(self) -> tuple[str, ...]:
        """What the figures of a plan do not show of it, in whole sentences."""
        return ()

    def same_dtype(self) -> tuple[Tensor, ...]:
        """Its parameters and buffers whose dtype no cast changes: counts, numbers that a configuration fixes."""
        return ()

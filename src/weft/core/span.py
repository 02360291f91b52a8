"""`Span`: what one call does to each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.checks import require
from weft.core.clock import Clock, Moment, Ticks, tell
from weft.core.errors import InputError, StateError
from weft.core.facts import require_shapes
from weft.core.output import Given


@dataclass(frozen=True)
class Memory:
    """A source sequence that a decoder attends to, encoded once.

    Attributes:
        h: the encoder's output.
        count: tokens of each row that exist (right padding beyond), None when all do.
    """

    h: Tensor  # [B,S,D]
    count: Tensor | None = None  # [B]

    def valid(self) -> Tensor | None:
        """[B,S], False for padding; None when every token exists."""
        if self.count is None:
            return None
        return torch.arange(self.h.shape[1], device=self.h.device)[None] < self.count[:, None]

    def select(self, rows: Tensor) -> Memory:
        """The given rows."""
        return Memory(self.h.index_select(0, rows), None if self.count is None else self.count.index_select(0, rows))


@dataclass(frozen=True)
class Span:
    """What one call does. Tensors say which tokens count and where documents begin; plain Python facts, set once at
    the edge, let kernels be chosen without reading a tensor.

    Attributes:
        count: row b advances by ``count[b] <= T`` tokens, the rest of the row is padding on the right; None: all T.
        begins: True where a document starts. A row's very first token starts one without being marked.
        prefix: True for tokens of their document's bidirectional prefix (prefix-LM); a prefix is contiguous from its
            document's first token and lies within one call.
        facts: by name a whole number or a boolean for each token, [B,T], that masks can read (`weft.core.facts`).
        coordinates: explicit positions, [B,T] or n-dimensional [B,T,n]; None: index within the document.
        memory: what cross-attention reads, for a call without a state (a state keeps its own from ``init_state``).
        horizon: declared document lengths [B] for a call without a state; None: each document's own length.
        fresh: the state has consumed nothing in any row; always so without a state, refused for one that has.
        bound: no row will have consumed more than this many tokens after the call.
        uniform: every row will have consumed exactly ``bound`` tokens after the call, all of one document.
        taken: what earlier layers of the call gave (`weft.core.channels`).
        ticks: of the chunk; these and what follows are there once the span is resolved, as layers read it.
        before: the clock before the chunk; only a call with a state has one.
        after: the clock after the chunk, likewise.
    """

    count: Int64[Tensor, " B"] | None = None
    begins: Bool[Tensor, "B T"] | None = None
    prefix: Bool[Tensor, "B T"] | None = None
    facts: Mapping[str, Tensor] | None = None
    coordinates: Tensor | None = None
    memory: Memory | None = None
    horizon: Int64[Tensor, " B"] | None = None
    fresh: bool = False
    bound: int | None = None
    uniform: bool = False
    taken: tuple[Given, ...] = ()
    moment: Moment | None = field(default=None, repr=False)
    # Plain attributes of what a moment holds: layers read them at every step, and properties take several calls each.
    ticks: Ticks = field(default=None, repr=False, compare=False)  # type: ignore[assignment]
    before: Clock = field(default=None, repr=False, compare=False)  # type: ignore[assignment]
    after: Clock = field(default=None, repr=False, compare=False)  # type: ignore[assignment]

    @property
    def full(self) -> bool:
        """Every row advances by all T tokens."""
        return self.count is None

    @property
    def packed(self) -> bool:
        """A document may begin inside the chunk."""
        return self.begins is not None

    def replace(self, **changes: object) -> Span:
        """A copy with some fields changed; what was worked out for the old ones is forgotten."""
        return dataclasses.replace(self, **{**UNRESOLVED, **changes})  # type: ignore[arg-type]

    def passing(self, given: tuple[Given, ...]) -> Span:
        """The span for the layers after one that gave this."""
        return dataclasses.replace(self, taken=self.taken + given) if given else self

    def take(self, name: str) -> Any:
        """What the last layer that gave something under that name gave.

        Raises:
            InputError: none did, as where a layer that takes something is run by itself.
        """
        for given in reversed(self.taken):
            if given.name == name:
                return given.value
        raise InputError(f"no layer before this one gave {name!r}.", where="span.taken",
                         remedy="Run it in a stack behind a layer that gives it, or hand it over in span.taken.")

    def resolve(self, clock: Clock | None, x: Tensor) -> Span:
        """This span with its `Moment` against ``clock`` worked out, unless an enclosing layer has done so already; the
        call consumes the state then, unless it has no tokens.

        Args:
            clock: the state's clock, None for a call without a state.
            x: the chunk, [B,T,...].

        Raises:
            InputError: a tensor of another shape, or a count outside the chunk.
            StateError: the state was consumed, or is said to be fresh and is not.
        """
        if self.moment is not None and self.moment.before is clock:
            return self
        shape = (x.shape[0], x.shape[1])
        if not (self.count is None and self.begins is None and self.prefix is None and self.horizon is None
                and self.coordinates is None and not self.facts):
            self._require_shapes(shape)
        fresh = clock is None or self.fresh
        # The state is asked only where the call says so: the compiler would make the first step for itself otherwise.
        if clock is not None and self.fresh and not clock.fresh:
            raise StateError("fresh is said of a state that has consumed tokens.", where="span.fresh",
                             remedy="Leave it out, or start a new state with init_state.")
        if clock is not None and shape[1] > 0:
            clock.lease.consume()
        moment = tell(clock, shape, x.device, count=self.count, begins=self.begins, prefix=self.prefix,
                      coordinates=self.coordinates, horizon=self.horizon, one_document=fresh or self.uniform,
                      facts=self.facts)
        if clock is not None and clock.places is not None and moment.after is not None and shape[1] > 0:
            places = clock.places.advanced(clock, moment.after, moment.ticks, self.bound)
            moment = dataclasses.replace(moment, after=dataclasses.replace(moment.after, places=places))
        known: Any = moment  # without a state there are no clocks, and nothing reads them
        return dataclasses.replace(self, fresh=fresh, moment=moment, ticks=known.ticks, before=known.before,
                                   after=known.after)

    def _require_shapes(self, shape: tuple[int, int]) -> None:
        batch, steps = shape
        wanted = {"count": (batch,), "begins": (batch, steps), "prefix": (batch, steps), "horizon": (batch,)}
        for name, size in wanted.items():
            given: Tensor | None = getattr(self, name)
            if given is not None and tuple(given.shape) != size:
                raise InputError(f"shape {tuple(given.shape)} for {batch} rows of {steps} tokens.",
                                 where=f"span.{name}", remedy=f"Give shape {size}.")
        if self.count is not None:
            require((self.count >= 0) & (self.count <= steps), InputError, f"a count outside 0 to {steps}.",
                    where="span.count", remedy=f"Rows of {steps} tokens can advance by 0 to {steps}.")
        if self.facts:
            require_shapes(self.facts, shape)
        places = self.coordinates
        if places is not None and (places.dim() not in (2, 3) or tuple(places.shape[:2]) != shape):
            raise InputError(f"shape {tuple(places.shape)} for {batch} rows of {steps} tokens.",
                             where="span.coordinates", remedy=f"Give shape {(batch, steps)} or {(batch, steps, 'n')}.")

    def clean(self, x: Tensor) -> Tensor:
        """``x`` [B,T,...] with zeros beyond each row's count, and no gradient there."""
        valid = self.ticks.valid
        if valid is None:
            return x
        mask = valid.reshape(*valid.shape, *([1] * (x.dim() - 2)))
        return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))


UNRESOLVED = MappingProxyType(dict.fromkeys(("moment", "ticks", "before", "after")))
WHOLE = Span()
"""Every row advances by all its tokens, no document begins inside."""

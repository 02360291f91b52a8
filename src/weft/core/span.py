"""`Span`: by how much a call advances each row, and where documents begin.

`Output`: the result of a call of a layer or model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.clock import Clock, ResolvedCall, Ticks, resolve_call
from weft.core.compiling import require
from weft.core.errors import InputError, StateError
from weft.core.pieces import Pieces
from weft.core.state import State

S = TypeVar("S", bound=State)


class Loss(NamedTuple):
    """An auxiliary loss (router balance, z-loss), already weighted and averaged over the chunk's real tokens."""

    name: str
    value: Tensor


class Given(NamedTuple):
    """The value, a tensor or a record of tensors, that a layer gives to later ones (`weft.core.declarations`)."""

    name: str
    value: Any


class Output(NamedTuple, Generic[S]):
    """The result of a call.

    Attributes:
        y: the chunk's output, [B,T,...]; zero beyond each row's count.
        state: the state after the chunk; None when the call was made without one.
        losses: auxiliary losses, to be added to the training loss.
        given: values that later layers may take.
    """

    y: Tensor
    state: S | None
    losses: tuple[Loss, ...] = ()
    given: tuple[Given, ...] = ()


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
    """A description of one call. Its tensors mark which tokens count and where documents begin; its plain Python facts,
    set once by the caller, allow kernels to be chosen without reading a tensor.

    Attributes:
        count: row b advances by ``count[b] <= T`` tokens; the rest of the row is padding on the right. None: all T.
        begins: True where a document starts. A row's very first token starts one without being marked.
        prefix: True for tokens of their document's bidirectional prefix (prefix-LM); a prefix is contiguous from its
            document's first token and lies within one call.
        facts: whole numbers or booleans for each token, [B,T], by name, which masks can read.
        coordinates: explicit positions, [B,T] or n-dimensional [B,T,n]; None: index within the document.
        memory: what cross-attention reads, for a call without a state (a state keeps its own from ``init_state``).
        horizon: declared document lengths [B] for a call without a state; None: each document's own length.
        fresh: no row of the state has consumed anything. Always true without a state; refused if a row has.
        bound: no row will have consumed more than this many tokens after the call.
        uniform: every row will have consumed exactly ``bound`` tokens after the call, all of one document.
        taken: values that earlier layers of the call gave (`weft.core.declarations`).
        pieces: the pieces of the rows that several processes compute; None: this process computes all tokens.
        moment: the call resolved against a clock; this and the following are set by `resolve`, before layers run.
        ticks: of the chunk.
        before: the clock before the chunk, for a call with a state.
        after: the clock after the chunk, for a call with a state.
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
    pieces: Pieces | None = field(default=None, repr=False, compare=False)
    moment: ResolvedCall | None = field(default=None, repr=False)
    # Attributes and not properties of the moment: layers read them at every step, and a property costs several calls.
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
        """A copy with some fields changed, which has to be resolved again."""
        return dataclasses.replace(self, **{**UNRESOLVED, **changes})  # type: ignore[arg-type]

    def to(self, device: torch.device | str) -> Span:
        """A copy whose own tensors are on a device, which has to be resolved again; the memory stays where it is."""
        own = {name: value.to(device) for name in ("count", "begins", "prefix", "coordinates", "horizon")
               if (value := getattr(self, name)) is not None}
        facts = None if self.facts is None else {name: fact.to(device) for name, fact in self.facts.items()}
        return self.replace(**own, facts=facts)

    def passing(self, given: tuple[Given, ...]) -> Span:
        """The span for the layers after one that gave these values."""
        return dataclasses.replace(self, taken=self.taken + given) if given else self

    def take(self, name: str) -> Any:
        """The value that the last earlier layer with a channel of this name gave. Raises `InputError`: no earlier layer
        gave one, for example because a layer that takes it is run alone."""
        for given in reversed(self.taken):
            if given.name == name:
                return given.value
        raise InputError(f"no layer before this one gave {name!r}.", where="span.taken",
                         remedy="Run it in a stack behind a layer that gives it, or pass its value in span.taken.")

    def resolve(self, clock: Clock | None, x: Tensor) -> Span:
        """This span resolved against ``clock``, or itself if an enclosing layer has resolved it. A call with tokens
        consumes the state here.

        Args:
            clock: the state's clock, None for a call without a state.
            x: the chunk, [B,T,...].

        Raises:
            InputError: a tensor of another shape, or a count outside the chunk.
            StateError: another call has consumed the state, or the span's ``fresh`` is wrong.
        """
        if self.moment is not None and self.moment.before is clock:
            return self
        if self.pieces is not None:
            raise InputError("the span of a piece of rows that are cut among processes was changed, so that it no "
                             "longer belongs to the whole rows.", where="span",
                             remedy="Give facts and positions with the span of the whole rows.")
        shape = (x.shape[0], x.shape[1])
        if not (self.count is None and self.begins is None and self.prefix is None and self.horizon is None
                and self.coordinates is None and not self.facts):
            self._require_shapes(shape)
        fresh = clock is None or self.fresh
        # The clock's fact is read only if the span sets its own: otherwise the compiler would compile the first step
        # separately, because the fact changes after it.
        if clock is not None and self.fresh and not clock.fresh:
            raise StateError("fresh is set for a state that has consumed tokens.", where="span.fresh",
                             remedy="Leave it out, or start a new state with init_state.")
        if clock is not None and shape[1] > 0:
            clock.lease.consume()
        moment = resolve_call(clock, shape, x.device, count=self.count, begins=self.begins, prefix=self.prefix,
                              coordinates=self.coordinates, horizon=self.horizon, one_document=fresh or self.uniform,
                              facts=self.facts, bound=self.bound)
        untyped: Any = moment  # without a state its clocks are None, and no layer reads them
        # `dataclasses.replace`, written out for a step of one token.
        return Span(self.count, self.begins, self.prefix, self.facts, self.coordinates, self.memory, self.horizon,
                    fresh, self.bound, self.uniform, self.taken, self.pieces, moment, untyped.ticks, untyped.before,
                    untyped.after)

    def _require_shapes(self, shape: tuple[int, int]) -> None:
        batch, steps = shape
        shapes = {"count": (batch,), "begins": (batch, steps), "prefix": (batch, steps), "horizon": (batch,)}
        for name, size in shapes.items():
            tensor: Tensor | None = getattr(self, name)
            if tensor is not None and tuple(tensor.shape) != size:
                raise InputError(f"shape {tuple(tensor.shape)} for {batch} rows of {steps} tokens.",
                                 where=f"span.{name}", remedy=f"Give shape {size}.")
        if self.count is not None:
            require((self.count >= 0) & (self.count <= steps), InputError, f"a count outside 0 to {steps}.",
                    where="span.count", remedy=f"Rows of {steps} tokens can advance by 0 to {steps}.")
        for name, fact in (self.facts or {}).items():
            if tuple(fact.shape) != shape or fact.is_floating_point() or fact.is_complex():
                raise InputError(f"{fact.dtype} of shape {tuple(fact.shape)} for {batch} rows of {steps} tokens.",
                                 where=f"span.facts.{name}", remedy=f"Give whole numbers or booleans of shape {shape}.")
        coordinates = self.coordinates
        if coordinates is not None and (coordinates.dim() not in (2, 3) or tuple(coordinates.shape[:2]) != shape):
            raise InputError(f"shape {tuple(coordinates.shape)} for {batch} rows of {steps} tokens.",
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


class Boundaries(NamedTuple):
    """Which tokens of a chunk begin a document and which count, [B,T]; None: none begins inside, all count. With them,
    the pieces of rows that are cut among processes, as recurrences take them."""

    starts: Bool[Tensor, "B T"] | None
    valid: Bool[Tensor, "B T"] | None
    pieces: Pieces | None = None

    @staticmethod
    def of(span: Span, rows: int) -> Boundaries:
        """Those of a resolved span."""
        valid = span.ticks.valid
        starts = span.ticks.starts().expand(rows, -1) if span.packed else None
        return Boundaries(starts if starts is None or valid is None else starts & valid, valid, span.pieces)

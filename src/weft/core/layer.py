"""`Layer`: a causal map threaded by a state, under one law.

    Running a sequence in any pieces, threading the state, equals running it whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from weft.core.channels import Channel
from weft.core.clock import Clock
from weft.core.collected import (
    borders_of,
    facts_of,
    lookbacks_of,
    require_read,
    source_width,
    traits_of,
    with_boundaries,
)
from weft.core.errors import StateError
from weft.core.history import Lookback, start_history
from weft.core.output import Output
from weft.core.part import KeptDtypes, Part, computing_dtype, kept_dtypes
from weft.core.span import WHOLE, Memory, Span
from weft.core.state import State
from weft.core.traits import Trait

__all__ = ["Choice", "Chooser", "KeptDtypes", "Layer", "LayerState", "Part", "Pointwise", "advance", "beginning",
           "borders_of", "computing_dtype", "facts_of", "kept_dtypes", "source_width", "traits_of", "with_boundaries"]


@dataclass(frozen=True)
class LayerState(State):
    """Base of layer states, and the whole state of a layer that looks at one token at a time."""

    clock: Clock


class Layer(Part, ABC):
    """A map from [B,T,D] to [B,T,D] that may keep a state: every token mixer, every feed-forward, a block, a stack.

    A subclass implements `start` (its state before the first token, for a given clock) and `run`. It reads its span
    resolved: ``span.ticks``, ``span.after`` and the facts; and it never chooses by reading a tensor.
    """

    composite: ClassVar[bool] = False
    """True for layers that only call other layers, which clean the padding themselves."""

    state_type: type[LayerState] = LayerState
    """What `start` returns and `run` takes."""

    def gives(self) -> tuple[Channel, ...]:
        """What it gives to later layers, in `Output.given` (`weft.core.channels`)."""
        return ()

    def takes(self) -> tuple[Channel, ...]:
        """What it takes from earlier layers, by `Span.take`."""
        return ()

    def init_state(self, batch: int, *, capacity: int | None = None, dtype: torch.dtype | None = None,
                   device: torch.device | str | None = None, memory: Memory | None = None,
                   horizon: int | Tensor | None = None) -> LayerState:
        """The state before the first token.

        Args:
            batch: rows.
            capacity: tokens a row may consume; buffers of that size are reserved once, and a call that would exceed
                it raises. None: grow by each chunk.
            dtype: of fields that follow the model's dtype; None: the layer's own.
            device: None: the layer's own.
            memory: what cross-attention reads; projected here, once.
            horizon: declared document length, one or one per row, for parts that depend on it.
        """
        clock, kind = beginning(self, batch, capacity=capacity, dtype=dtype, device=device, horizon=horizon)
        return self.start(clock, capacity=capacity, dtype=kind, memory=memory)

    @abstractmethod
    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        """The state before the first token on ``clock``, which it shares with its neighbours."""

    @abstractmethod
    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        """The chunk's output and the state after it, None when none was given. ``span`` is resolved."""

    def forward(self, x: Float[Tensor, "B T D"], state: LayerState | None = None,
                span: Span | None = None) -> Output[LayerState]:
        """Run a chunk.

        Args:
            x: [B,T,D].
            state: where earlier chunks left off; consumed. None: start fresh and keep nothing.
            span: what this call does; None: every row advances by all T tokens.
        """
        span = WHOLE if span is None else span
        clock, inner = None if state is None else state.clock, span.moment is not None
        if not inner or span.before is not clock:
            span = self._resolved(x, state, span)
        elif state is not None and type(state) is not self.state_type:
            self._require_own(state, x.shape[0])
        if span.count is None or (self.composite and inner):
            return self.run(x, state, span)
        out = self.run(span.clean(x), state, span)
        return out._replace(y=span.clean(out.y))

    def _resolved(self, x: Tensor, state: LayerState | None, span: Span) -> Span:
        """The span against the state's own clock, of which no layer around this one has worked it out."""
        if state is not None:
            self._require_own(state, x.shape[0])
        if span.facts and span.moment is None:
            require_read(span.facts, self)
        return span.resolve(None if state is None else state.clock, x)

    def _require_own(self, state: LayerState, batch: int) -> None:
        place = type(self).__name__
        if type(state) is not self.state_type:
            raise StateError(f"got a {type(state).__name__} where this layer keeps a {self.state_type.__name__}.",
                             where=place, remedy="Pass a state that this layer's init_state made.")
        rows = state.clock.seen.shape[0]
        if rows != batch:
            raise StateError(f"a state of {rows} rows for {batch} rows of input.", where=place,
                             remedy="Select the rows first, or start a state of that batch.")


def beginning(part: nn.Module, batch: int, *, capacity: int | None, dtype: torch.dtype | None,
              device: torch.device | str | None, horizon: int | Tensor | None) -> tuple[Clock, torch.dtype]:
    """A clock before the first token, and the dtype of state fields that follow the model's; what is None is taken
    from the part's parameters."""
    own = next(iter(part.parameters()), None)
    place = own.device if device is None and own is not None else device
    kind = (computing_dtype(part) or torch.get_default_dtype()) if dtype is None else dtype
    read = facts_of(part)
    facts = start_history(map(Lookback, read.values()), batch, capacity=capacity, device=place, width=len(read))
    positions = start_history(lookbacks_of(part), batch, capacity=capacity, device=place)
    return Clock.start(batch, device=place, horizon=horizon, fact_names=tuple(sorted(read)), facts=facts,
                       positions=positions), kind


class Pointwise(Layer, ABC):
    """A layer that treats every token by itself: its state is the clock alone."""

    @abstractmethod
    def each(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The map of single tokens."""

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        return LayerState(clock)

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        return Output(self.each(x), advance(state, span))


class Choice(NamedTuple):
    """What a layer decided for each token.

    Attributes:
        chosen: ids of what was chosen, best first.
        margin: by how much the last that was chosen beat the first that was not, over the largest score there was;
            infinite where everything is chosen.
    """

    chosen: Int64[Tensor, "B T k"]
    margin: Float[Tensor, "B T"]


class Chooser(Layer, ABC):
    """A layer that decides something discrete for each token, so that its output jumps where two scores are equal."""

    def own_traits(self) -> frozenset[Trait]:
        return frozenset({Trait.DISCRETE_CHOICE})

    @abstractmethod
    def choose(self, x: Float[Tensor, "B T D"]) -> Choice:
        """What is chosen for each token of ``x``."""


def advance(state: LayerState | None, span: Span) -> LayerState | None:
    """The state of a layer that keeps nothing but the clock, after the chunk."""
    if state is None:
        return None
    return LayerState(span.after) if type(state) is LayerState else replace(state, clock=span.after)

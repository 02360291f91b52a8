"""`Layer`: a causal map threaded by a state, under one law.

    Running a sequence in any pieces, threading the state, equals running it whole.

Labels of the modules of a model, in the words that its parts declare (`weft.core.declarations`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, NamedTuple, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.declarations import Declared, Trait
from weft.core.errors import StateError
from weft.core.history import Lookback, start_history
from weft.core.part import (
    KeptDtypes,
    Part,
    borders_of,
    computing_dtype,
    declared_in,
    facts_in,
    facts_of,
    kept_dtypes,
    require_read,
    source_width,
    traits_of,
    with_boundaries,
)
from weft.core.pieces import Pieces
from weft.core.span import WHOLE, Memory, Output, Span
from weft.core.state import State

__all__ = ["Choice", "Chooser", "KeptDtypes", "Layer", "LayerState", "Part", "Pointwise", "advance", "beginning",
           "borders_of", "computing_dtype", "facts_of", "kept_dtypes", "source_width", "traits_of", "with_boundaries"]


@dataclass(frozen=True)
class LayerState(State):
    """Base of layer states, and the whole state of a layer that processes each token independently."""

    composite: ClassVar[bool] = False
    """True for states of layers that only call other layers, which zero the padding themselves."""

    clock: Clock


class Layer(Part, ABC):
    """A map from [B,T,D] to [B,T,D] that may keep a state: every token mixer, every feed-forward, a block, a stack.

    A subclass implements `start` (its state before the first token, on a given clock) and `run`. The span that it
    receives is resolved: it reads ``span.ticks``, ``span.after`` and the plain facts. No choice may depend on the value
    of a tensor.
    """

    state_type: type[LayerState] = LayerState
    """The class of the state that `start` returns and `run` takes."""

    @final
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
            memory: the encoded source that cross-attention reads; its keys and values are computed here, once.
            horizon: declared document length, one or one for each row, for parts that depend on it.
        """
        clock, kind = beginning(self, batch, capacity=capacity, dtype=dtype, device=device, horizon=horizon)
        return self.start(clock, capacity=capacity, dtype=kind, memory=memory)

    @abstractmethod
    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        """The state before the first token on ``clock``, which it shares with its neighbours."""

    @abstractmethod
    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        """The chunk's output and the state after it, None without a state. ``span`` is resolved."""

    @final  # type: ignore[misc]
    def forward(self, x: Float[Tensor, "B T D"], state: LayerState | None = None,
                span: Span | None = None) -> Output[LayerState]:
        """Run a chunk.

        Args:
            x: [B,T,D].
            state: after earlier chunks; consumed. None: start fresh and keep nothing.
            span: None: every row advances by all T tokens.
        """
        span = WHOLE if span is None else span
        clock, inner = None if state is None else state.clock, span.moment is not None
        if not inner or span.before is not clock:
            span = self._resolved(x, state, span)
        elif state is not None and type(state) is not self.state_type:
            self._require_own(state, x.shape[0])
        if span.pieces is not None and not self.state_type.composite:
            return self._in_pieces(span.pieces, x, state, span)
        if span.count is None or (self.state_type.composite and inner):
            return self.run(x, state, span)
        out = self.run(span.clean(x), state, span)
        return out._replace(y=span.clean(out.y))

    def _in_pieces(self, pieces: Pieces, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        """The output of this process's piece of the rows."""
        declared = self.declares()
        if declared.joins_pieces and (state is not None or declared.joins_without_state):
            out = self.run(span.clean(x), state, span)
            return out._replace(y=span.clean(out.y))
        alone = replace(span, pieces=None)
        if self.state_type is LayerState and Trait.BIDIRECTIONAL not in declared.traits:
            return self.forward(x, state, alone)
        if state is None:
            return pieces.together(lambda whole, every: self.forward(whole, None, every), x)
        return pieces.in_turn(lambda before: self.forward(x, before, alone), state)

    def _resolved(self, x: Tensor, state: LayerState | None, span: Span) -> Span:
        """The span resolved against the state's clock, since no enclosing layer has resolved it against this one."""
        if state is not None:
            self._require_own(state, x.shape[0])
        if span.facts and span.moment is None:
            require_read(span.facts, self)
        return span.resolve(None if state is None else state.clock, x)

    def _require_own(self, state: LayerState, batch: int) -> None:
        where = type(self).__name__
        if type(state) is not self.state_type:
            raise StateError(f"got a {type(state).__name__} where this layer keeps a {self.state_type.__name__}.",
                             where=where, remedy="Pass a state that this layer's init_state returned.")
        rows = state.clock.seen.shape[0]
        if rows != batch:
            raise StateError(f"a state of {rows} rows for {batch} rows of input.", where=where,
                             remedy="Select the rows first, or start a state of that batch.")


def beginning(part: nn.Module, batch: int, *, capacity: int | None, dtype: torch.dtype | None,
              device: torch.device | str | None, horizon: int | Tensor | None) -> tuple[Clock, torch.dtype]:
    """A clock before the first token, and the dtype of state fields that follow the model's. A device or dtype of None
    is that of the part's parameters."""
    needs = needs_of(part)
    clock = needs.clock(batch, capacity=capacity, device=device, horizon=horizon)
    return clock, needs.dtype if dtype is None else dtype


class Needs(NamedTuple):
    """The declarations of a part's modules about the states that it starts. Collecting it visits all of them, so a
    caller that starts many states does it once.

    Attributes:
        device: of its parameters, or of its buffers where it has no parameter; None without either.
        dtype: of state fields that follow the model's.
        facts: the facts that its modules read (`facts_of`).
        lookbacks: the earlier tokens whose positions they read.
    """

    device: torch.device | None
    dtype: torch.dtype
    facts: dict[str, int | None]
    lookbacks: tuple[Lookback, ...]

    def clock(self, batch: int, *, capacity: int | None, device: torch.device | str | None,
              horizon: int | Tensor | None) -> Clock:
        """A clock before the first token; the arguments are those of `Layer.init_state`."""
        device = self.device if device is None else device
        facts = start_history(map(Lookback, self.facts.values()), batch, capacity=capacity, device=device,
                              width=len(self.facts))
        positions = start_history(self.lookbacks, batch, capacity=capacity, device=device)
        return Clock.start(batch, device=device, horizon=horizon, fact_names=tuple(sorted(self.facts)), facts=facts,
                           positions=positions)


def needs_of(part: nn.Module) -> Needs:
    """The declarations that states of ``part`` need."""
    tensor = next(chain(part.parameters(), part.buffers()), None)  # of quantised maps, buffers alone
    declarations = declared_in(part)
    return Needs(None if tensor is None else tensor.device,
                 computing_dtype(part) or torch.get_default_dtype(), facts_in(declarations),
                 tuple(each.lookback for each in declarations if each.lookback is not None))


class Pointwise(Layer, ABC):
    """A layer that processes every token independently: its state is the clock alone."""

    @abstractmethod
    def each(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The map of single tokens."""

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        return LayerState(clock)

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        y = self.each(x)
        return Output(y, LayerState(span.after) if type(state) is LayerState else advance(state, span))


class Choice(NamedTuple):
    """The discrete choice of a layer for each token, such as its experts.

    Attributes:
        chosen: ids of the chosen options, best first.
        margin: the score of the last chosen option less that of the first one not chosen, over the largest score;
            infinite if all are chosen.
    """

    chosen: Int64[Tensor, "B T k"]
    margin: Float[Tensor, "B T"]


class Chooser(Layer, ABC):
    """A layer with a discrete choice for each token, so that its output is discontinuous where two scores are equal.

    In training every parameter gets a gradient from every call, zero where no token chose it: processes that share the
    layer add their gradients together, and each must have all of them."""

    def declares(self) -> Declared:
        return Declared(traits=frozenset({Trait.DISCRETE_CHOICE}))

    @abstractmethod
    def choose(self, x: Float[Tensor, "B T D"]) -> Choice:
        """The choice for each token of ``x``."""


def advance(state: LayerState | None, span: Span) -> LayerState | None:
    """The state after the chunk of a layer whose other fields the chunk does not change."""
    if state is None:
        return None
    return LayerState(span.after) if type(state) is LayerState else replace(state, clock=span.after)


EMBEDDINGS, LOGITS = "embeddings", "logits"
"""The roles of the model's input and output vocabulary matrices."""


def label_modules(model: nn.Module) -> dict[str, str]:
    """The label of the part that each module belongs to, by the module's path: the role that the module, or the part
    that contains it, declares."""
    declared = {module: module.declares() for module in model.modules() if isinstance(module, Part)}
    children = dict[int, str]()  # roles of modules inside a part, by their identities: they may have several paths
    for part, own in declared.items():
        inside = dict(part.named_modules(remove_duplicate=False)) if own.child_roles else {}
        children |= {id(inside[path]): role for path, role in own.child_roles.items() if path in inside}
    labels: dict[str, str] = {}
    prefixes: dict[str, str] = {}
    for path, module in model.named_modules():
        holder = path.rpartition(".")[0]
        inherited, prefix = labels.get(holder, ""), prefixes.get(holder, "")
        before = declared[module].prefix if module in declared and path else ""
        prefixes[path] = before or prefix
        role = declared[module].role if module in declared else EMBEDDINGS if isinstance(module, nn.Embedding) else ""
        role = "" if before else role or children.get(id(module), "")
        if not inherited and "." not in path and not isinstance(module, Layer | nn.ModuleDict):
            inherited = path  # a direct child of the model
        labels[path] = before or f"{prefix} {role}".strip() if before or role else inherited
    return labels

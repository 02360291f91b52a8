"""`Layer`: a causal map threaded by a state, under one law.

    Running a sequence in any pieces, threading the state, equals running it whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.utils import parametrize

from weft.core.calling import Direct
from weft.core.channels import Channel
from weft.core.clock import Clock
from weft.core.declarations import Declarations
from weft.core.errors import StateError
from weft.core.facts import require_read, start_facts
from weft.core.output import Output
from weft.core.places import Lookback, start_places
from weft.core.span import WHOLE, Memory, Span
from weft.core.state import State
from weft.core.traits import Trait


@dataclass(frozen=True)
class LayerState(State):
    """Base of layer states, and the whole state of a layer that looks at one token at a time."""

    clock: Clock


class Part(Direct, Declarations, ABC):
    """Base of everything that a configuration builds: layers, position schemes, norms, models."""

    own_law: ClassVar[bool] = False
    """True for parts whose traits do not weaken the model that holds them: an encoder beside a causal decoder."""

    def own_traits(self) -> frozenset[Trait]:
        """Ways in which this part itself does less than the law."""
        return frozenset()

    def inference(self) -> nn.Module:
        """This part in the form that is fastest without gradients: equal outputs and losses, and the same state, so
        that either goes on where the other left off. Itself where there is nothing to gain, or where a child that the
        form would take apart is not `untouched`. It may share weights with this part, which stays as it is.
        `weft.linear.inference` puts whole models into it, and asks no part of which it is inherited: a subclass may
        compute something else."""
        return self

    def lookback(self) -> Lookback | None:
        """Which earlier tokens this part itself asks the positions of; None for none."""
        return None

    def dynamics(self) -> tuple[nn.Parameter, ...]:
        """Own parameters that say how a state moves, whatever their shape: modes, rates, time steps. Weight decay
        would pull them to other dynamics, not to simpler ones, so optimisers do not decay them."""
        return ()

    def exact(self) -> tuple[Tensor, ...]:
        """Own parameters and buffers that a cast to narrower floats leaves in float32 or wider, because what is made of
        them magnifies their rounding: a mode's angle is multiplied by the number of tokens."""
        return self.dynamics()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `to`, `bfloat16`, `half` and `cuda` come to."""
        kept = kept_dtypes(self)

        def moved(tensor: Tensor) -> Tensor:
            if id(tensor) in kept.exact:
                return _kept_wide(tensor, fn)
            made = fn(tensor)
            return tensor.to(made.device) if id(tensor) in kept.same and made.dtype != tensor.dtype else made

        super()._apply(moved if kept.exact or kept.same else fn, recurse)  # type: ignore[no-untyped-call]
        return self


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
            require_read(span.facts, facts_of(self))
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


class KeptDtypes(NamedTuple):
    """Identities of tensors that a cast treats otherwise than the rest.

    Attributes:
        exact: those that stay in float32 or wider (`Part.exact`), their gradients too.
        same: those that stay as they are (`Declarations.same_dtype`).
    """

    exact: frozenset[int]
    same: frozenset[int]

    def after(self, tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
        """What a cast of floats to ``dtype`` leaves a tensor of floats in."""
        if id(tensor) in self.same:
            return tensor.dtype
        return torch.promote_types(dtype, torch.float32) if id(tensor) in self.exact else dtype


def kept_dtypes(module: nn.Module) -> KeptDtypes:
    """What the parts in a module declare of the dtypes of their tensors, wherever else in it the tensors stand."""
    parts = [part for part in module.modules() if isinstance(part, Part)]
    exact = [tensor for part in parts for tensor in _exact_tensors(part)]
    return KeptDtypes(frozenset(id(each) for own in exact for each in (own, own.grad) if each is not None),
                      frozenset(id(own) for part in parts for own in part.same_dtype()))


def _exact_tensors(part: Part) -> list[Tensor]:
    """What a part needs exact; where one of these is made of another by a parametrisation, that other one too."""
    if not parametrize.is_parametrized(part):
        return list(part.exact())
    with parametrize.cached():
        found = list(part.exact())
        made = {id(tensor) for tensor in found}
        lists = {name: each for name, each in part.get_submodule("parametrizations").named_children()
                 if id(getattr(part, name)) in made}
    return [*found, *(tensor for each in lists.values() for tensor in (*each.parameters(), *each.buffers()))]


def _kept_wide(tensor: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """What ``fn`` makes of a tensor, or the tensor in float32 at that place where it would be narrower."""
    if tensor.is_complex():
        with torch.no_grad():
            return torch.view_as_complex(_kept_wide(torch.view_as_real(tensor.detach()), fn))
    moved = fn(tensor)
    if moved.dtype == tensor.dtype:
        return moved
    return tensor.to(moved.device, torch.promote_types(moved.dtype, torch.float32))


def computing_dtype(module: nn.Module) -> torch.dtype | None:
    """The dtype that a module computes in: that of its first parameter that a cast does not leave as it is
    (`Part.exact`), or of its first where there is no other; None without parameters."""
    exact, own = kept_dtypes(module).exact, list(module.parameters())
    return next((p.dtype for p in [*(p for p in own if id(p) not in exact), *own]), None)


def beginning(part: nn.Module, batch: int, *, capacity: int | None, dtype: torch.dtype | None,
              device: torch.device | str | None, horizon: int | Tensor | None) -> tuple[Clock, torch.dtype]:
    """A clock before the first token, and the dtype of state fields that follow the model's; what is None is taken
    from the part's parameters."""
    needs = needs_of(part)
    clock = needs.clock(batch, capacity=capacity, device=device, horizon=horizon)
    return clock, needs.dtype if dtype is None else dtype


class Needs(NamedTuple):
    """What a part's modules declare of the states that it starts. It takes a walk through all of them, so that whoever
    starts many states looks it up once.

    Attributes:
        device: of its parameters; None without any.
        dtype: of state fields that follow the model's.
        facts: that its modules read (`facts_of`).
        lookbacks: which positions they ask for.
    """

    device: torch.device | None
    dtype: torch.dtype
    facts: dict[str, int | None]
    lookbacks: tuple[Lookback | None, ...]

    def clock(self, batch: int, *, capacity: int | None, device: torch.device | str | None,
              horizon: int | Tensor | None) -> Clock:
        """A clock before the first token; the arguments are those of `Layer.init_state`."""
        place = self.device if device is None else device
        return Clock.start(batch, device=place, horizon=horizon,
                           facts=start_facts(self.facts, batch, capacity, place),
                           places=start_places(self.lookbacks, batch, capacity=capacity, device=place))


def needs_of(part: nn.Module) -> Needs:
    """What the states of ``part`` need."""
    own = next(iter(part.parameters()), None)
    return Needs(None if own is None else own.device, computing_dtype(part) or torch.get_default_dtype(),
                 facts_of(part), tuple(each.lookback() for each in part.modules() if isinstance(each, Part)))


def traits_of(module: nn.Module) -> frozenset[Trait]:
    """The traits of a module and everything in it."""
    found = module.own_traits() if isinstance(module, Part) else frozenset[Trait]()
    for child in module.children():
        if not (isinstance(child, Part) and child.own_law):
            found |= traits_of(child)
    return found


def with_boundaries(module: nn.Module) -> list[Part]:
    """The parts inside that hold boundaries where a backward pass can begin again."""
    return [part for part in module.modules() if isinstance(part, Part) and part.kept_activations is not None]


def source_width(module: nn.Module) -> int | None:
    """Features of the source that some part inside reads; None where none reads one."""
    widths = (part.source_width() for part in module.modules() if isinstance(part, Part))
    return next((width for width in widths if width is not None), None)


def facts_of(module: nn.Module) -> dict[str, int | None]:
    """The facts of tokens that the parts inside read, by name, with how far back some part looks; None: to the
    first."""
    found: dict[str, int | None] = {}
    for part in module.modules():
        for name, reach in part.facts().items() if isinstance(part, Part) else ():
            known = found.get(name, 0)
            found[name] = None if reach is None or known is None else max(reach, known)
    return found


def borders_of(module: nn.Module) -> frozenset[int]:
    """The borders that a module and everything in it declare."""
    return frozenset(border for part in module.modules() if isinstance(part, Part) for border in part.borders())


class Pointwise(Layer, ABC):
    """A layer that treats every token by itself: its state is the clock alone."""

    @abstractmethod
    def each(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The map of single tokens."""

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        return LayerState(clock)

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        y = self.each(x)
        return Output(y, LayerState(span.after) if type(state) is LayerState else advance(state, span))


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

"""A mixer from outside with one of many defects, as a plugin would bring it, for `test_check_finds`.

Most defects are of a kind that the laws on eleven tokens of a narrow float64 twin pass: they begin at a border, above
a width, in a dtype or in a mode. `InjectedConfig` is registered by the tests that use it, and only while they run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from weft.core.clock import OWN, Clock, Keys
from weft.core.layer import Layer, LayerState
from weft.core.part_config import About, Dims
from weft.core.span import Memory, Output, Span
from weft.core.state import fact_field, tensor_field
from weft.masks import Causal, Window
from weft.masks.visible import MaskFacts, VisibleKeys, visible
from weft.mixers.attention import Attention, AttentionConfig
from weft.mixers.base import MixerConfig
from weft.mixers.lstm import LSTM
from weft.mixers.self_attention import head_sizes, start_rolling


@dataclass(frozen=True)
class AverageState(LayerState):
    """The average so far."""

    average: Tensor = tensor_field()  # [B,D]


class Average(Layer):
    """y_t = W s_t, s_t = a s_(t-1) + (1 - a) x_t, token by token: healthy, and what the defects are made from."""

    state_type: type[LayerState] = AverageState

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.linspace(1.0, 5.0, d_model))
        self.mix = nn.Linear(d_model, d_model)

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        zeros = torch.zeros(clock.seen.shape[0], self.logit.shape[0], dtype=dtype, device=clock.seen.device)
        return AverageState(clock, zeros)

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        if x.shape[1] == 0:
            return Output(x, state)
        decay, average = torch.sigmoid(self.logit), self.before(x, state)
        begun = self.starts(x, span) if span.ticks.packed else (None,) * x.shape[1]
        valid = span.ticks.valid
        counted = (None,) * x.shape[1] if valid is None else valid[..., None].unbind(1)
        steps = []
        for index, (share, starts, counts) in enumerate(zip(((1 - decay) * x).unbind(1), begun, counted, strict=True)):
            carried = self.carried(average if starts is None else torch.where(starts, 0.0, average), index)
            fed = decay * carried + share
            average = fed if counts is None else torch.where(counts, fed, average)
            steps.append(average)
        return Output(self.mixed(self.seen(torch.stack(steps, 1))), self.after(average, state, span))

    def before(self, x: Tensor, state: LayerState | None) -> Tensor:
        """What the call begins with."""
        return state.average.to(x.dtype) if isinstance(state, AverageState) else torch.zeros_like(x[:, 0])

    def starts(self, x: Tensor, span: Span) -> tuple[Tensor, ...]:
        """Where documents start, by token."""
        return span.ticks.starts().expand(x.shape[:2])[..., None].unbind(1)

    def carried(self, average: Tensor, index: int) -> Tensor:
        """What goes into the token at ``index`` of the call."""
        return average

    def seen(self, averages: Tensor) -> Tensor:
        """What the output is made from."""
        return averages

    def mixed(self, averages: Tensor) -> Tensor:
        """The output."""
        y: Tensor = self.mix(averages)
        return y

    def after(self, average: Tensor, state: LayerState | None, span: Span) -> LayerState | None:
        """The state after the call."""
        if not isinstance(state, AverageState):
            return None
        return replace(state, clock=span.after, average=average.to(state.average.dtype))


# Wrong at a length


class WrongAtChunkBorder(Average):
    """A scan in chunks of 16 that hands on too little from chunk to chunk."""

    def carried(self, average: Tensor, index: int) -> Tensor:
        return 0.9 * average if index and index % 16 == 0 else average


class ForgetsAt32(Average):
    """Drops what it knows at a call's token 32."""

    def carried(self, average: Tensor, index: int) -> Tensor:
        return torch.zeros_like(average) if index == 32 else average


class ForgetsAt128(LSTM):
    """An LSTM that begins anew at a call's token 128."""

    def scan(self, projected: Tensor, before: tuple[Tensor, ...], starts: Tensor | None) -> tuple[Tensor, ...]:
        if projected.shape[0] <= 128:
            return super().scan(projected, before, starts)
        first = super().scan(projected[:128], before, None if starts is None else starts[:128])
        blank = tuple(torch.zeros_like(value) for value in before)
        rest = self.scan(projected[128:], blank, None if starts is None else starts[128:])
        return tuple(torch.cat(parts) for parts in zip(first, rest, strict=True))


class KeepsOnly64Keys(Attention):
    """A rolling buffer of at most 64 keys, whatever the window."""

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        assert self.reach is not None
        return start_rolling(clock, self.stored_sizes(), min(self.reach, 64), dtype)


class BlindBeyond1000(Attention):
    """A path with a state that reads the last 1,000 keys, though nothing says so."""

    def visible(self, keys: Keys, span: Span) -> VisibleKeys:
        if keys.layout == OWN:
            return super().visible(keys, span)
        return visible(MaskFacts.of(Causal() & Window(1000), self.sizes.heads), keys, span)


class OverflowsAt100(Average):
    """Scales by a power that is too large from a call's token 100 on."""

    def carried(self, average: Tensor, index: int) -> Tensor:
        scale = torch.tensor(10.0, dtype=torch.float64) ** (3.09 * index)
        return (average.double() * scale / scale).to(average.dtype)


# Wrong in a mode, a dtype or a width


class KeepsItsMatrix(Average):
    """Multiplies by a second reference to the matrix of its map, so that an adapter of the map has no effect."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.matrix = self.mix.weight

    def mixed(self, averages: Tensor) -> Tensor:
        return nn.functional.linear(averages, self.matrix)


class WrongInTraining(Average):
    """Drops its state in training mode."""

    def before(self, x: Tensor, state: LayerState | None) -> Tensor:
        found = super().before(x, state)
        return torch.zeros_like(found) if self.training else found


class ReadsOnTheHost(Average):
    """Reads a tensor to choose what it computes."""

    def before(self, x: Tensor, state: LayerState | None) -> Tensor:
        found = super().before(x, state)
        return found if found.abs().max().item() > 0 else torch.zeros_like(found)


class WrongInFloat32Continuation(Average):
    """Loses a part of its state where float32 goes on with several tokens."""

    def before(self, x: Tensor, state: LayerState | None) -> Tensor:
        found = super().before(x, state)
        return 0.9 * found if x.dtype == torch.float32 and x.shape[1] > 1 else found


class WrongAbove64(Average):
    """Drops its state in pieces of several tokens, where it is wider than 64."""

    def before(self, x: Tensor, state: LayerState | None) -> Tensor:
        found = super().before(x, state)
        return torch.zeros_like(found) if x.shape[2] > 64 and x.shape[1] > 1 else found


# Wrong with its state, documents or order


class Cell:
    """What every copy of a state has in common, by the number of its rows and the tokens they have seen. Any two are
    equal, so that states are joined."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cell)

    def __init__(self) -> None:
        self.averages: dict[tuple[int, ...], Tensor] = {}


@dataclass(frozen=True)
class SharedState(AverageState):
    """Its copies share a cell."""

    cell: Cell = fact_field()

    def key(self) -> tuple[int, ...]:
        return tuple(self.clock.seen.tolist())


class SharesForks(Average):
    """Keeps its averages in a cell that copies of the state share: of two that are as far, the first to go on
    takes what the second left."""

    state_type = SharedState

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        made = super().start(clock, capacity=capacity, dtype=dtype, memory=memory)
        assert isinstance(made, AverageState)
        return SharedState(made.clock, made.average, Cell())

    def before(self, x: Tensor, state: LayerState | None) -> Tensor:
        found = super().before(x, state)
        return state.cell.averages.pop(state.key(), found) if isinstance(state, SharedState) else found

    def after(self, average: Tensor, state: LayerState | None, span: Span) -> LayerState | None:
        found = super().after(average, state, span)
        if isinstance(found, SharedState):
            found.cell.averages[found.key()] = average
        return found


class ForgetsSeveralTokens(Average):
    """Drops its state in a call of more than one token."""

    def before(self, x: Tensor, state: LayerState | None) -> Tensor:
        found = super().before(x, state)
        return torch.zeros_like(found) if x.shape[1] > 1 else found


class LeaksDocuments(Average):
    """Goes on from one document into the next."""

    def starts(self, x: Tensor, span: Span) -> tuple[Tensor, ...]:
        return torch.zeros_like(x[..., :1], dtype=torch.bool).unbind(1)


class LeaksFuture(Average):
    """Adds a little of the next token's average."""

    def seen(self, averages: Tensor) -> Tensor:
        return averages + 0.1 * torch.cat([averages[:, 1:], averages[:, -1:]], 1)


@dataclass(frozen=True)
class GrowingState(LayerState):
    """Every average so far, in a field that says it is bounded."""

    averages: Tensor = tensor_field()  # [B,T,D]


class GrowsUndeclared(Average):
    """Keeps all that it ever knew."""

    state_type = GrowingState

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        made = super().start(clock, capacity=capacity, dtype=dtype, memory=memory)
        assert isinstance(made, AverageState)
        return GrowingState(made.clock, made.average[:, None])

    def before(self, x: Tensor, state: LayerState | None) -> Tensor:
        return state.averages[:, -1].to(x.dtype) if isinstance(state, GrowingState) else super().before(x, None)

    def after(self, average: Tensor, state: LayerState | None, span: Span) -> LayerState | None:
        if not isinstance(state, GrowingState):
            return None
        return GrowingState(span.after, torch.cat([state.averages, average[:, None].to(state.averages.dtype)], 1))


@dataclass(frozen=True)
class WarmState(AverageState):
    """Whether a token has come, as a plain fact, which no file of tensors holds."""

    warm: bool = fact_field()


class LosesField(Average):
    """Takes its state for blank unless a fact says otherwise."""

    state_type = WarmState

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        made = super().start(clock, capacity=capacity, dtype=dtype, memory=memory)
        assert isinstance(made, AverageState)
        return WarmState(made.clock, made.average, False)

    def before(self, x: Tensor, state: LayerState | None) -> Tensor:
        found = super().before(x, state)
        return found if isinstance(state, WarmState) and state.warm else torch.zeros_like(found)

    def after(self, average: Tensor, state: LayerState | None, span: Span) -> LayerState | None:
        found = super().after(average, state, span)
        return replace(found, warm=True) if isinstance(found, WarmState) else found


class Raises(Average):
    """Raises where a document begins inside a call."""

    def starts(self, x: Tensor, span: Span) -> tuple[Tensor, ...]:
        if span.packed:
            raise ValueError("documents are not supported")
        return super().starts(x, span)


def _windowed(kind: type[Attention], window: int | None, dims: Dims) -> Attention:
    mask = Causal() if window is None else Causal() & Window(window)
    config = AttentionConfig(n_heads=2, mask=mask)
    sizes = head_sizes(2, None, None, None, dims)
    return kind(config, sizes, config.position.build_for_heads(dims, 2, sizes.d_head), dims)


LAYERS: dict[str, type[Layer]] = {kind.__name__: kind for kind in (
    Average, WrongAtChunkBorder, ForgetsAt32, ForgetsAt128, KeepsOnly64Keys, BlindBeyond1000, OverflowsAt100,
    WrongInTraining, ReadsOnTheHost, WrongInFloat32Continuation, WrongAbove64, SharesForks, ForgetsSeveralTokens,
    LeaksDocuments, LeaksFuture, GrowsUndeclared, LosesField, KeepsItsMatrix, Raises)}


class InjectedConfig(MixerConfig):
    """The layer of the class ``defect``; attention has a window of 100 keys where it has one."""

    kind: ClassVar[str] = "injected"
    about = About(source="these tests", state_size="d_model numbers")

    defect: str = "Average"

    def build(self, dims: Dims) -> Layer:
        layer: Any = LAYERS[self.defect]
        if issubclass(layer, Attention):
            return _windowed(layer, 100 if layer is KeepsOnly64Keys else None, dims)
        made: Layer = layer(dims.d_model)
        return made

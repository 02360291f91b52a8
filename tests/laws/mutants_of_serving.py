"""Further mutants: states that rows cannot be admitted to, that cannot be trimmed or rewound, a part that rewrites do
not reach, and a head that counts padding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from laws.mutants import Shift
from weft.core.clock import Clock
from weft.core.layer import LayerState
from weft.core.span import Memory, Span
from weft.core.state import fact_field, pad_to, tensor_field
from weft.feedforward.mlp import MLP
from weft.heads.classifier import PooledHead
from weft.ops.token_shift import last_token


@dataclass(frozen=True)
class DoubleState(LayerState):
    """Two places for the last input, and which of them holds it."""

    places: Tensor = tensor_field()
    at: int = fact_field(saved=int, joined=max)


class TakesTurns(Shift):
    """Writes two buffers in turn, and gives all rows the turn of a row that is admitted."""

    state_type = DoubleState

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        return DoubleState(clock, torch.zeros(clock.seen.shape[0], 2, self.weight.shape[0], dtype=dtype), 0)

    def before(self, state: LayerState | None, x: Tensor) -> Tensor | None:
        return state.places[:, state.at] if isinstance(state, DoubleState) else None

    def keep(self, x: Tensor, last: Tensor, state: LayerState, span: Span) -> LayerState:
        assert isinstance(state, DoubleState)
        newest, at = last_token(x, last, span), 1 - state.at
        return DoubleState(span.after, torch.stack((newest, last) if at == 0 else (last, newest), 1), at)


@dataclass(frozen=True)
class GrownState(LayerState):
    """Every input so far, [B,S,D]."""

    kept: Tensor = tensor_field(grows=1)


class KeepsOneSlotMore(Shift):
    """Keeps a token in the slot after that of its order; the first holds the zeros before the first token."""

    state_type = GrownState

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        return GrownState(clock, torch.zeros(clock.seen.shape[0], 1, self.weight.shape[0], dtype=dtype))

    def before(self, state: LayerState | None, x: Tensor) -> Tensor | None:
        if not isinstance(state, GrownState):
            return None
        return state.kept.gather(1, state.clock.seen[:, None, None].expand(-1, 1, x.shape[2]))[:, 0]

    def keep(self, x: Tensor, last: Tensor, state: LayerState, span: Span) -> LayerState:
        assert isinstance(state, GrownState)
        slots = state.clock.seen[:, None, None] + 1 + torch.arange(x.shape[1])[:, None]
        longer = pad_to(state.kept, 1, state.kept.shape[1] + x.shape[1], 0)
        return GrownState(span.after, longer.scatter(1, slots.expand_as(x), x))


class KeepsNewestFirst(Shift):
    """Keeps its inputs in the order in which it looks for them, so that a token's slot changes with every later one."""

    state_type = GrownState

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        return GrownState(clock, torch.zeros(clock.seen.shape[0], 0, self.weight.shape[0], dtype=dtype))

    def before(self, state: LayerState | None, x: Tensor) -> Tensor | None:
        if not isinstance(state, GrownState):
            return None
        return state.kept[:, 0] if state.kept.shape[1] else x.new_zeros(x.shape[0], x.shape[2])

    def keep(self, x: Tensor, last: Tensor, state: LayerState, span: Span) -> LayerState:
        assert isinstance(state, GrownState)
        if x.shape[1] == 0:
            return replace(state, clock=span.after)
        newest = last_token(x, last, span)[:, None]
        return GrownState(span.after, torch.cat([newest, x[:, :-1].flip(1), state.kept], dim=1))


class ReadsPastItsMap(MLP):
    """Multiplies by the first matrix that it finds in its map; a low-rank term comes after that."""

    def each(self, x: Tensor) -> Tensor:
        weight, bias, *_ = self.up.parameters()
        y: Tensor = self.down(self.activation(nn.functional.linear(x, weight, bias)))
        return y


class KeepsItsMatrix(MLP):
    """Multiplies by a second reference to the matrix of its map, in a container that no walk over modules enters."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__(d_model, d_ff)
        self.aliases = (self.up.weight, self.up.bias)

    def each(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.activation(nn.functional.linear(x, *self.aliases)))
        return y


class KeepsItsMatrixForSteps(KeepsItsMatrix):
    """Calls its map, except in calls of one token."""

    def each(self, x: Tensor) -> Tensor:
        return super().each(x) if x.shape[1] == 1 else MLP.each(self, x)


class NamesItsMatrixTwice(MLP):
    """Multiplies by the matrix of its map, which is registered as a parameter of the part too."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__(d_model, d_ff)
        self.matrix, self.term = self.up.weight, self.up.bias

    def each(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.activation(nn.functional.linear(x, self.matrix, self.term)))
        return y


class KeepsItsMap(MLP):
    """Calls its map by a second reference, which still holds the map that a rewrite has replaced."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__(d_model, d_ff)
        self.maps = (self.up,)

    def each(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.activation(self.maps[0](x)))
        return y


class MeansOverPadding(PooledHead):
    """Divides by the length of the batch, not by each row's count."""

    def _pooled(self, h: Tensor, count: Tensor | None) -> Tensor:
        return super()._pooled(h, None)

"""Further mutants, of what a state goes through besides plain calls: continued in float32, forked, saved, used twice;
of training mode, choices, memory, an encoder's inputs, and what a compiler meets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from laws.mutants import Shift, ShiftState
from weft.core.clock import Clock
from weft.core.layer import LayerState
from weft.core.model import EncoderInputs
from weft.core.recurrent_layer import HiddenState
from weft.core.span import Memory, Output, Span
from weft.core.state import Lease
from weft.feedforward.mlp import MLP
from weft.feedforward.moe import MixtureOfExperts
from weft.mixers.attention import Attention
from weft.mixers.cross_attention import CrossAttention
from weft.mixers.gru import GRU
from weft.mixers.key_value import KeyValueState
from weft.models.encoder import TokenEncoder
from weft.ops.token_shift import last_token

MANY = 14
"""Tokens of one call, of each rank of choice; with the weights of the first draw the last expert gets fewer."""


class RoundsWhenContinued(GRU):
    """Rounds the state that several tokens continue, in every dtype but one."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        if isinstance(state, HiddenState) and x.shape[1] > 1 and x.dtype != torch.float64:
            state = replace(state, h=state.h.bfloat16().to(state.h.dtype))
        return super().run(x, state, span)


class PartsFromItsClock(GRU):
    """Gives the state a clock of its own in a call of no tokens."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        out = super().run(x, state, span)
        if out.state is None or x.shape[1] > 0:
            return out
        return out._replace(state=replace(out.state, clock=out.state.clock.clone()))


class TakesUsedStates(GRU):
    """Does not ask whether the state was consumed."""

    def forward(self, x: Tensor, state: LayerState | None = None, span: Span | None = None) -> Output[LayerState]:
        if state is not None:
            state = replace(state, clock=replace(state.clock, lease=Lease()))
        return super().forward(x, state, span)


@dataclass(frozen=True)
class LeanState(KeyValueState):
    """Copies its clock alone, where room is reserved."""

    def clone(self) -> LeanState:
        return super().clone() if self.capacity is None else replace(self, clock=self.clock.clone())


class ForksShareBuffers(Attention):
    """Its state's copies write into one buffer, if that has room for them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.state_type = LeanState

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        return LeanState(**vars(super().start(clock, capacity=capacity, dtype=dtype, memory=memory)))

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        out = super().run(x, state, span)
        return out if out.state is None else out._replace(state=LeanState(**vars(out.state)))


class KeepsWholePositions(Attention):
    """Keeps positions as whole numbers."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        out = super().run(x, state, span)
        if out.state is None or out.state.clock.positions is None:
            return out
        positions = out.state.clock.positions
        clock = replace(out.state.clock, positions=replace(positions, values=positions.values.long()))
        return out._replace(state=replace(out.state, clock=clock))


class NeverDrops(CrossAttention):
    """Is never in training mode."""

    def train(self, mode: bool = True) -> NeverDrops:
        super().train(False)
        return self


class AlwaysDrops(CrossAttention):
    """Is always in training mode."""

    def train(self, mode: bool = True) -> AlwaysDrops:
        super().train(True)
        return self


class LargerInTraining(MLP):
    """Scales its output in training."""

    def each(self, x: Tensor) -> Tensor:
        return super().each(x) * (1.01 if self.training else 1.0)


class ReadsOnTheHost(MLP):
    """Chooses by a value."""

    def each(self, x: Tensor) -> Tensor:
        return super().each(x.clamp(-1e9, 1e9) if x.abs().sum().item() > 1e9 else x)


class TiresOfAnExpert(MixtureOfExperts):
    """Gives the last expert nothing more after the first tokens of a call."""

    def _dispatch(self, rows: Tensor, chosen: Tensor, gates: Tensor, valid: Tensor | None) -> Tensor:
        last = chosen == len(self.experts) - 1
        return super()._dispatch(rows, chosen, torch.where(last & (last.cumsum(0) > MANY), 0.0, gates), valid)


class KeepsTheChunk(Shift):
    """Keeps its last input as a view, and with it the whole chunk."""

    def keep(self, x: Tensor, last: Tensor, state: LayerState, span: Span) -> LayerState:
        kept = last_token(x, last, span)
        return ShiftState(span.after, x[:, -1] if span.count is None and x.shape[1] > 0 else kept)


class TakesNotes(Shift):
    """Remembers something of every call on the module."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.notes: list[int] = []

    def keep(self, x: Tensor, last: Tensor, state: LayerState, span: Span) -> LayerState:
        self.notes.append(x.shape[1])
        return super().keep(x, last, state, span)


class IgnoresTypes(TokenEncoder):
    """Takes segment ids and does not read them."""

    def forward(self, inputs: EncoderInputs, span: Span | None = None) -> Tensor:
        return super().forward(replace(inputs, types=None), span)

"""Layers that are wrong in one way each, for `test_mutants`: every law must be able to turn red.

A mutant overrides one method of a healthy layer, its twin. None of them is far-fetched: each is a mistake that has been
made in a published code base.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from weft.core.clock import OWN, Clock, Keys, Ticks
from weft.core.layer import Layer, LayerState
from weft.core.recurrent_layer import HiddenState
from weft.core.span import Memory, Output, Span
from weft.core.state import tensor_field
from weft.feedforward.glu import GLU, FusedGLU
from weft.feedforward.mlp import MLP
from weft.feedforward.moe import MixtureOfExperts
from weft.heads.readout import LinearReadout
from weft.masks import Causal, Window
from weft.masks.visible import MaskedKeys, MaskFacts, VisibleKeys, visible
from weft.mixers.attention import Attention
from weft.mixers.cross_attention import CrossAttention, CrossMemory
from weft.mixers.gated_convolution import ConvolutionState, GatedConvolution
from weft.mixers.gru import GRU
from weft.mixers.s4d import S4D
from weft.mixers.self_attention import start_rolling
from weft.norms.base import Norm, NormConfig
from weft.ops.linear_log_prob import linear_log_prob
from weft.ops.token_shift import last_token, previous_token


def unpacked(span: Span) -> Span:
    """The span with its documents forgotten."""
    moment = span.moment
    assert moment is not None
    ticks = replace(moment.ticks, begin=torch.zeros_like(moment.ticks.begin), packed=False)
    return replace(span, begins=None, moment=replace(moment, ticks=ticks), ticks=ticks)


# Recurrences


class ForgetsAcrossLongChunks(GRU):
    """Drops its state whenever a call has more than one token."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        if isinstance(state, HiddenState) and x.shape[1] > 1:
            state = replace(state, h=torch.zeros_like(state.h))
        return super().run(x, state, span)


class ForgetsAtEmptyChunks(GRU):
    """Drops its state in a call of no tokens."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        out = super().run(x, state, span)
        if isinstance(out.state, HiddenState) and x.shape[1] == 0:
            return out._replace(state=replace(out.state, h=torch.zeros_like(out.state.h)))
        return out


class RunsThroughPadding(GRU):
    """Keeps the state after T steps, not after each row's count."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        return super().run(x, state, replace(span, count=None))


class CutsGradients(GRU):
    """Detaches the state that it is given."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        return super().run(x, None if state is None else state.detach(), span)


class NeverResets(GRU):
    """Runs on from one document into the next."""

    def scan(self, projected: Tensor, before: tuple[Tensor, ...], starts: Tensor | None) -> tuple[Tensor, ...]:
        return super().scan(projected, before, None)


class RecursOverDocuments(S4D):
    """Convolves across documents."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        return super().run(x, state, unpacked(span))


class TapsAcrossDocuments(GatedConvolution):
    """Convolves across documents."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        return super().run(x, state, unpacked(span))


class KeepsOldDocument(GatedConvolution):
    """Fences documents within a call, but hands the last one's inputs on to a new document's continuation."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        out = super().run(x, state, span)
        if isinstance(state, ConvolutionState) and isinstance(out.state, ConvolutionState) and span.full:
            reach = state.history.shape[1]
            kept = torch.cat([state.history, x], dim=1)[:, x.shape[1]:][:, :reach]
            return out._replace(state=replace(out.state, history=kept.clone()))
        return out


# Attention


class SeesNextToken(Attention):
    """A mask off by one."""

    def visible(self, keys: Keys, span: Span) -> VisibleKeys:
        ticks = replace(span.ticks, order=span.ticks.order + 1)
        return MaskedKeys(self.rule, ticks, replace(keys, layout=None), begins=span.packed)


class WidensWindowLater(Attention):
    """A window one too wide, in continued calls only."""

    def visible(self, keys: Keys, span: Span) -> VisibleKeys:
        if keys.layout == OWN or self.reach is None:
            return super().visible(keys, span)
        return visible(MaskFacts.of(Causal() & Window(self.reach + 1), self.sizes.heads), keys, span)


class ShortRollingBuffer(Attention):
    """A rolling buffer of one slot less than the window."""

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        assert self.reach is not None
        return start_rolling(clock, self.stored_sizes(), self.reach - 1, dtype)


class NoFence(Attention):
    """Looks into earlier documents."""

    def visible(self, keys: Keys, span: Span) -> VisibleKeys:
        return MaskedKeys(self.rule, replace(span.ticks, packed=False), keys, begins=False)


class SeesPadding(Attention):
    """Attends to padded keys."""

    def visible(self, keys: Keys, span: Span) -> VisibleKeys:
        return super().visible(replace(keys, valid=None), span)


class RestartsPositions(Attention):
    """Rotates every call's tokens from position zero."""

    def project(self, x: Tensor, ticks: Ticks) -> tuple[Tensor, Tensor, Tensor]:
        restarted = torch.arange(x.shape[1])[None] + ticks.begin
        return super().project(x, replace(ticks, order=restarted))


class RotatesOneTooFar(Attention):
    """Rotates continued calls by an offset that is one too large."""

    def project(self, x: Tensor, ticks: Ticks) -> tuple[Tensor, Tensor, Tensor]:
        continued = (ticks.order[:, :1] > 0).long()
        return super().project(x, replace(ticks, order=ticks.order + continued))


class AdvancesByWidth(Attention):
    """Advances every row's clock by T."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        out = super().run(x, state, span)
        if state is None or out.state is None:
            return out
        clock = replace(out.state.clock, seen=state.clock.seen + x.shape[1])
        return out._replace(state=replace(out.state, clock=clock))


class SeesSourcePadding(CrossAttention):
    """Attends to the source's padding."""

    def _known(self, state: LayerState | None, span: Span, rows: int) -> CrossMemory:
        return super()._known(state, span, rows)._replace(valid=None)


# Layers that treat tokens apart


class MixesRows(MLP):
    """Subtracts the batch's mean."""

    def each(self, x: Tensor) -> Tensor:
        return super().each(x - x.mean(0, keepdim=True))


class LeavesPadding(MLP):
    """Does not clear what it computed for padding."""

    def forward(self, x: Tensor, state: LayerState | None = None, span: Span | None = None) -> Output[LayerState]:
        resolved = (span or Span()).resolve(None if state is None else state.clock, x)
        return self.run(resolved.clean(x), state, resolved)


class DropsTokens(MixtureOfExperts):
    """Gives every expert a capacity, first come, first served over the batch."""

    def _dispatch(self, rows: Tensor, chosen: Tensor, gates: Tensor, valid: Tensor | None) -> Tensor:
        picks = torch.zeros(rows.shape[0], len(self.experts), dtype=torch.int64).scatter(1, chosen, 1)
        place = picks.cumsum(0).gather(1, chosen)
        return super()._dispatch(rows, chosen, torch.where(place <= 2, gates, 0.0), valid)


class ChoosesWorst(MixtureOfExperts):
    """Takes the smallest scores for the largest in every dtype but one."""

    def _logits(self, rows: Tensor) -> Tensor:
        logits = super()._logits(rows)
        return logits if logits.dtype == torch.float64 else -logits


class ExchangesWhenFused(GLU):
    """Its inference form takes the gate for the value."""

    def inference(self) -> FusedGLU:
        exchanged = copy.copy(self)
        exchanged._modules = dict(self._modules, gate=self.up, up=self.gate)
        return FusedGLU(exchanged)


class OverTime(Norm):
    """Normalises each feature over the chunk."""

    dim = 1

    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return (x - x.mean(self.dim, keepdim=True)) / (1 + x.square().mean(self.dim, keepdim=True))


class OverBatch(OverTime):
    """Normalises each feature over the rows."""

    dim = 0


class OverTimeConfig(NormConfig):
    """`OverTime`; not registered."""

    def build_size(self, size: int) -> Norm:
        return OverTime()


class OverBatchConfig(NormConfig):
    """`OverBatch`; not registered."""

    def build_size(self, size: int) -> Norm:
        return OverBatch()


class ForgetsSoftcap(LinearReadout):
    """Caps its logits but not its log-probabilities."""

    def log_prob(self, h: Tensor, targets: Tensor) -> Tensor:
        return linear_log_prob(h, self.weight, self.bias, targets, None)


class IgnoresOnLoad(MLP):
    """Leaves a weight as it was when a checkpoint is loaded."""

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        state_dict[f"{prefix}up.weight"] = self.up.weight.detach().clone()
        super()._load_from_state_dict(state_dict, prefix, *rest)


# A token shift with its state in several wrong hands


@dataclass(frozen=True)
class ShiftState(LayerState):
    """The last input."""

    last: Tensor = tensor_field()


class Shift(Layer):
    """y_t = x_t + weight * x_{t-1}: the twin of the mutants below."""

    state_type: type[LayerState] = ShiftState

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(d_model))

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        return ShiftState(clock, torch.zeros(clock.seen.shape[0], self.weight.shape[0], dtype=dtype))

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        last = self.before(state, x)
        y = x + previous_token(self.weight * x, None if last is None else self.weight * last, span)
        return Output(y, None if state is None or last is None else self.keep(x, last, state, span))

    def before(self, state: LayerState | None, x: Tensor) -> Tensor | None:
        return state.last if isinstance(state, ShiftState) else None

    def keep(self, x: Tensor, last: Tensor, state: LayerState, span: Span) -> LayerState:
        return ShiftState(span.after, last_token(x, last, span))


class WritesInPlace(Shift):
    """Writes its buffer in place under gradients."""

    def keep(self, x: Tensor, last: Tensor, state: LayerState, span: Span) -> LayerState:
        return ShiftState(span.after, last.copy_(last_token(x, last, span)))


class WritesBehindAutograd(Shift):
    """Writes its buffer in place where autograd does not look."""

    def keep(self, x: Tensor, last: Tensor, state: LayerState, span: Span) -> LayerState:
        last.data.copy_(last_token(x, last, span))
        return ShiftState(span.after, last)


class HidesState(Shift):
    """Keeps its state on the module."""

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        self.hidden = torch.zeros(clock.seen.shape[0], self.weight.shape[0], dtype=dtype)
        return LayerState(clock)

    state_type = LayerState

    def before(self, state: LayerState | None, x: Tensor) -> Tensor | None:
        return None if state is None else self.hidden[torch.arange(x.shape[0]) % self.hidden.shape[0]]

    def keep(self, x: Tensor, last: Tensor, state: LayerState, span: Span) -> LayerState:
        self.hidden = last_token(x, last, span)
        return replace(state, clock=span.after)


class GrowsUndeclared(Shift):
    """Keeps every input under a field that says it is bounded."""

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        return ShiftState(clock, torch.zeros(clock.seen.shape[0], 1, self.weight.shape[0], dtype=dtype))

    def before(self, state: LayerState | None, x: Tensor) -> Tensor | None:
        return state.last[:, -1] if isinstance(state, ShiftState) else None

    def keep(self, x: Tensor, last: Tensor, state: LayerState, span: Span) -> LayerState:
        assert isinstance(state, ShiftState)
        return ShiftState(span.after, torch.cat([state.last, last_token(x, last, span)[:, None]], dim=1))


@dataclass(frozen=True)
class SumState(LayerState):
    """The sum of the inputs, float32 or better."""

    total: Tensor = tensor_field(keeps_dtype=True)


class RunningSum(Layer):
    """y_t = sum of the document's inputs up to t, accumulated in float32 or better; documents are not supported."""

    state_type: type[LayerState] = SumState

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(d_model))

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        exact = torch.promote_types(dtype, torch.float32)
        return SumState(clock, torch.zeros(clock.seen.shape[0], self.weight.shape[0], dtype=exact))

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        sums = wide.cumsum(1)
        if not isinstance(state, SumState):
            return Output(sums.to(x.dtype) * self.weight, None)
        total = state.total + wide.sum(1)
        y = ((state.total[:, None] + sums).to(x.dtype)) * self.weight
        return Output(y, SumState(span.after, self.kept(total, x)))

    def kept(self, total: Tensor, x: Tensor) -> Tensor:
        return total


class RoundsAccumulator(RunningSum):
    """Casts its accumulator to the dtype that the model computes in."""

    def kept(self, total: Tensor, x: Tensor) -> Tensor:
        return total.to(x.dtype)

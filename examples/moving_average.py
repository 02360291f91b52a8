"""A mixer from outside Weft: an exponential moving average with one learned decay per channel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.layer import Layer, LayerState
from weft.core.output import Output
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Memory, Span
from weft.core.state import tensor_field
from weft.mixers.base import MixerConfig


@dataclass(frozen=True)
class MovingAverageState(LayerState):
    """The average so far."""

    average: Tensor = tensor_field()  # [B,D]


@register
class MovingAverageConfig(MixerConfig):
    """s_t = a s_(t-1) + (1 - a) x_t with a in (0, 1) per channel; y_t = W s_t."""

    kind: ClassVar[str] = "moving_average"
    about = About(
        source="exponential smoothing; Ma et al. 2023 (MEGA), section 3.1, with one dimension",
        equation=r"s_t = a \odot s_{t-1} + (1 - a) \odot x_t, \qquad y_t = W s_t",
        differs=(("rg_lru", "decays are learned constants and do not depend on the token."),),
        state_size="d_model numbers")

    def build(self, dims: Dims) -> MovingAverage:
        return MovingAverage(dims.d_model)


class MovingAverage(Layer):
    """The moving average, step by step."""

    state_type = MovingAverageState

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.linspace(-2.0, 4.0, d_model))
        self.mix = nn.Linear(d_model, d_model)

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype,
              memory: Memory | None) -> MovingAverageState:
        zeros = torch.zeros(clock.seen.shape[0], self.logit.shape[0], dtype=dtype, device=clock.seen.device)
        return MovingAverageState(clock, zeros)

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        ticks, decay = span.ticks, torch.sigmoid(self.logit)
        fresh = x.new_zeros(x.shape[0], x.shape[2])
        average = state.average.to(x.dtype) if isinstance(state, MovingAverageState) else fresh
        counts = torch.ones_like(x[..., :1], dtype=torch.bool) if ticks.valid is None else ticks.valid[..., None]
        starts = ticks.starts().expand(x.shape[:2])[..., None]
        steps, share = [], (1 - decay) * x
        for token, begins, counted in zip(share.unbind(1), starts.unbind(1), counts.unbind(1), strict=True):
            before = torch.where(begins, 0.0, average)
            average = torch.where(counted, decay * before + token, average)
            steps.append(average)
        y = self.mix(torch.stack(steps, 1)) if steps else x
        after = replace(state, clock=span.after, average=average) if isinstance(state, MovingAverageState) else None
        return Output(y, after)

"""`StateSpace`, the base of layers of linear state-space models: H = d_model systems side by side, an activation, and a
linear map that mixes channels (Gu et al. 2022, section 3.4)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.clock import Clock
from weft.core.config import rule
from weft.core.layer import Layer, LayerState
from weft.core.output import Output
from weft.core.part_config import About
from weft.core.span import Boundaries, Memory, Span
from weft.core.state import tensor_field
from weft.linear.linear import Linear
from weft.mixers.base import MixerConfig
from weft.ops.activations import ACTIVATIONS, Activation
from weft.ops.ssm_chunk import Chunk, Inputs

Mixing: TypeAlias = Literal["glu", "linear"]


class StateSpace(Layer, ABC):
    """y = mix(activation(C x + D u)) over H = d_model systems with a learned step, log dt, and a learned D for each.

    A subclass creates ``log_dt``, ``skip`` and ``mix`` and implements `system`. All of the system is computed in
    float32 or better, whatever the model's dtype or autocast.
    """

    log_dt: nn.Parameter
    skip: nn.Parameter
    mix: Linear

    def __init__(self, activation: Activation, mixing: Mixing) -> None:
        super().__init__()
        self.activation, self.mixing = activation, mixing

    @abstractmethod
    def system(self, given: Inputs) -> Chunk:
        """C x for every token [B,T,H], and the state after the chunk."""

    @abstractmethod
    def carried(self, state: LayerState) -> Tensor:
        """The tensor of a state."""

    @abstractmethod
    def after(self, clock: Clock, values: Tensor) -> LayerState:
        """The state with this tensor."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        if x.shape[1] == 0:
            return Output(x, state)
        carried = None if state is None else self.carried(state)
        with torch.autocast(x.device.type, enabled=False):
            u = x.to(self.exact_dtype())
            before = None if carried is None else carried.to(u.dtype)
            y, after = self.system(Inputs(u, before, span.fresh, Boundaries.of(span, x.shape[0]).starts, span.count))
            y = y + self.skip.to(u.dtype) * u
        y = self._mix(ACTIVATIONS[self.activation](y.to(x.dtype)))
        if carried is None:
            return Output(y, None)
        assert after is not None and span.after is not None, "a call with a state has one after it"
        return Output(y, self.after(span.after, after.to(carried.dtype)))

    def exact_dtype(self) -> torch.dtype:
        """In which the system is computed."""
        return torch.promote_types(self.log_dt.dtype, torch.float32)

    def _mix(self, y: Tensor) -> Tensor:
        return F.glu(self.mix(y), dim=-1) if self.mixing == "glu" else self.mix(y)


class SystemConfig(MixerConfig):
    """Options of layers of state-space models whose state is N real numbers a channel.

    Attributes:
        d_state: units N of each channel's system.
        dt_min: smallest initial step, in tokens; steps are drawn log-uniformly.
        dt_max: largest initial step, in tokens.
        activation: after the state-space model.
        mixing: "glu", a linear map to 2 d_model and a gate, or "linear".
    """

    about = About(state_size="d_model d_state float32 numbers")

    d_state: int = Field(default=64, gt=0)
    dt_min: float = Field(default=0.001, gt=0, allow_inf_nan=False)
    dt_max: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    activation: Activation = "gelu"
    mixing: Mixing = "glu"

    @model_validator(mode="after")
    def _require_order(self) -> Self:
        if self.dt_min > self.dt_max:
            raise rule("dt_min", f"{self.dt_min:g} is above dt_max, {self.dt_max:g}.",
                       "Give the smaller step as dt_min.")
        return self

    def log_steps(self, d_model: int) -> nn.Parameter:
        """Initial log dt, one for each channel."""
        return nn.Parameter(torch.empty(d_model).uniform_(math.log(self.dt_min), math.log(self.dt_max)))


@dataclass(frozen=True)
class SystemState(LayerState):
    """The state of every channel's system, in float32 or better for any dtype of the model."""

    x: Float[Tensor, "B H N"] = tensor_field(keeps_dtype=True)


class System(StateSpace, ABC):
    """H systems with states of N real numbers. State: d_model d_state numbers a row."""

    state_type = SystemState

    def __init__(self, d_model: int, config: SystemConfig) -> None:
        super().__init__(config.activation, config.mixing)
        self.d_model, self.d_state = d_model, config.d_state
        self.log_dt = config.log_steps(d_model)
        self.skip = nn.Parameter(torch.randn(d_model))
        self.mix = Linear(d_model, 2 * d_model if config.mixing == "glu" else d_model)

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> SystemState:
        exact = torch.promote_types(dtype, torch.float32)
        return SystemState(clock, torch.zeros(clock.seen.shape[0], self.d_model, self.d_state, dtype=exact,
                                              device=clock.seen.device))

    def carried(self, state: LayerState) -> Tensor:
        assert isinstance(state, SystemState), "checked by Layer.forward"
        return state.x

    def after(self, clock: Clock, values: Tensor) -> SystemState:
        return SystemState(clock, values.contiguous())

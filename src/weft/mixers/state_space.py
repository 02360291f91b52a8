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

from weft.core.config import rule
from weft.core.layer import LayerState
from weft.core.part_config import About
from weft.core.recurrent_layer import Carried, Recurred, RecurrentLayer
from weft.core.span import Boundaries, Span
from weft.core.state import tensor_field
from weft.linear.linear import Linear
from weft.mixers.base import MixerConfig
from weft.ops.activations import ACTIVATIONS, Activation
from weft.ops.ssm_chunk import Chunk, Inputs

Mixing: TypeAlias = Literal["glu", "linear"]


class SystemConfig(MixerConfig):
    """Options of layers of state-space models.

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


class StateSpace(RecurrentLayer[Tensor], ABC):
    """y = mix(activation(C x + D u)) over H = d_model systems with a learned step, log dt, and a learned D for each.

    A subclass calls `add_maps` and implements `system`. All of the system is computed in float32 or better, whatever
    the model's dtype or autocast. State: d_model d_state numbers a row.
    """

    state_type: type[LayerState] = SystemState

    def __init__(self, d_model: int, config: SystemConfig) -> None:
        super().__init__()
        self.activation, self.mixing = config.activation, config.mixing
        self.d_model, self.d_state = d_model, config.d_state
        self.log_dt = config.log_steps(d_model)

    def add_maps(self) -> None:
        """Draw D and the mixing map."""
        self.skip = nn.Parameter(torch.randn(self.d_model))
        self.mix = Linear(self.d_model, 2 * self.d_model if self.mixing == "glu" else self.d_model)

    @abstractmethod
    def system(self, given: Inputs) -> Chunk:
        """C x for every token [B,T,H], and the state after the chunk."""

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> Float[Tensor, "B T D"]:
        return x

    def recur(self, projected: Tensor, before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        u, entering = projected.to(self.exact_dtype()), before[0]
        entering = None if entering is None else entering.to(u.dtype)
        y, after = self.system(Inputs(u, entering, span.fresh, boundaries.starts, span.count))
        y = y + self.skip.to(u.dtype) * u
        return Recurred(ACTIVATIONS[self.activation](y.to(projected.dtype)),
                        (None if after is None else after.contiguous(),))

    def output(self, o: Tensor) -> Float[Tensor, "B T D"]:
        """The map that mixes channels, and its gate."""
        return F.glu(self.mix(o), dim=-1) if self.mixing == "glu" else self.mix(o)

    def exact_dtype(self) -> torch.dtype:
        """In which the system is computed."""
        return torch.promote_types(self.log_dt.dtype, torch.float32)

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.d_model, self.d_state),)

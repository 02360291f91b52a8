"""S4D: a diagonal state-space model for every channel, trained as a convolution and decoded as a recurrence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.clock import Clock
from weft.core.config import rule
from weft.core.layer import Layer, LayerState
from weft.core.output import Output
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.core.span import Memory, Span
from weft.core.state import tensor_field
from weft.linear.linear import Linear
from weft.mixers.base import MixerConfig
from weft.ops.activations import ACTIVATIONS, Activation
from weft.ops.hippo import Initialisation, diagonal_modes
from weft.ops.s4d import Discretisation, Modes, discretise
from weft.ops.s4d_chunk import S4D_CHUNK, S4DCall


@register
class S4DConfig(MixerConfig):
    """A diagonal state-space model for every channel, an activation, and a linear map that mixes channels.

    Attributes:
        d_state: size N of each channel's real system, N/2 complex modes.
        init: initialisation of the modes.
        discretisation: zero-order hold or bilinear.
        dt_min: smallest initial step; steps are drawn log-uniformly.
        dt_max: largest initial step.
        activation: after the state-space model.
        mixing: "glu", a linear map to 2 d_model and a gate, or "linear".
    """

    kind: ClassVar[str] = "s4d"
    source: ClassVar[str] = "Gu et al. 2022b (S4D), section 3; Gu et al. 2022 (S4), section 3.4 (the layer)"
    state_size: ClassVar[str] = "d_model d_state float32 numbers"

    d_state: int = Field(default=64, gt=0)
    init: Initialisation = "lin"
    discretisation: Discretisation = "zoh"
    dt_min: float = Field(default=0.001, gt=0)
    dt_max: float = Field(default=0.1, gt=0)
    activation: Activation = "gelu"
    mixing: Literal["glu", "linear"] = "glu"

    @model_validator(mode="after")
    def _require_pairs_and_order(self) -> Self:
        if self.d_state % 2:
            raise rule("d_state", f"{self.d_state} is odd, and modes come in conjugate pairs.", "Give an even number.")
        if self.dt_min > self.dt_max:
            raise rule("dt_min", f"{self.dt_min:g} is above dt_max, {self.dt_max:g}.",
                       "Give the smaller step as dt_min.")
        return self

    def build(self, dims: Dims) -> S4D:
        return S4D(dims.d_model, self)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(d_state=8), cls(d_state=4, init="inv", discretisation="bilinear", activation="silu"),
                cls(d_state=6, init="legs", mixing="linear", activation="relu"),
                cls(d_state=2, dt_min=0.1, dt_max=0.5, activation="identity")]


@dataclass(frozen=True)
class S4DState(LayerState):
    """The complex state of every mode, as pairs, in float32 or better for any dtype of the model."""

    modes: Float[Tensor, "B H M 2"] = tensor_field(keeps_dtype=True)


class S4D(Layer):
    """H = d_model independent systems x' = A x + B u, y = 2 Re(C x) + D u, then an activation and a mixing linear map.

    A is diagonal and complex, A = -exp(log_decay) + i frequency; A, B, C, D and log dt are learned. Parameters are
    real tensors (complex numbers as pairs in the last dimension), which checkpoints, optimisers and sharding all
    support. Chunks are convolved by FFT in O(T log T), in float32 or better; single tokens are steps of the recurrence.
    State: N/2 complex numbers a channel, d_model d_state real ones a row. Common implementations fix B = 1; here
    that is the initial value (except for "legs"), and B is learned. The kernel is twice the real part, as one mode of
    each conjugate pair is stored.
    """

    state_type = S4DState

    def __init__(self, d_model: int, config: S4DConfig) -> None:
        super().__init__()
        self.config = config
        a, b = diagonal_modes(config.init, config.d_state)
        low, high = math.log(config.dt_min), math.log(config.dt_max)
        like = torch.empty(0)
        self.log_dt = nn.Parameter(torch.empty(d_model).uniform_(low, high))
        self.log_decay = nn.Parameter((-a[:, 0]).log().to(like).repeat(d_model, 1))
        self.frequency = nn.Parameter(a[:, 1].to(like).repeat(d_model, 1))
        self.b = nn.Parameter(b.to(like).repeat(d_model, 1, 1))
        self.c = nn.Parameter(torch.randn(d_model, config.d_state // 2, 2) / math.sqrt(2))
        self.skip = nn.Parameter(torch.randn(d_model))
        self.mix = Linear(d_model, 2 * d_model if config.mixing == "glu" else d_model)

    def dynamics(self) -> tuple[nn.Parameter, ...]:
        return self.log_dt, self.log_decay, self.frequency, self.b

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> S4DState:
        shape = (clock.seen.shape[0], *self.c.shape)
        exact = torch.promote_types(dtype, torch.float32)
        return S4DState(clock, torch.zeros(shape, dtype=exact, device=clock.seen.device))

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        if x.shape[1] == 0:
            return Output(x, state)
        assert state is None or isinstance(state, S4DState), "checked by Layer.forward"
        carried = None if state is None else state.modes
        with torch.autocast(x.device.type, enabled=False):
            y, after = self._system(x, carried, span)
        y = self._mix(ACTIVATIONS[self.config.activation](y.to(x.dtype)))
        if state is None:
            return Output(y, None)
        assert after is not None and span.after is not None, "a call with a state has one after it"
        return Output(y, S4DState(span.after, after.to(state.modes.dtype)))

    def discrete(self) -> Modes:
        """The system for the learned steps, in float32 or better."""
        exact = torch.promote_types(self.log_dt.dtype, torch.float32)
        a = torch.stack([-self.log_decay.to(exact).exp(), self.frequency.to(exact)], dim=-1)
        return discretise(a, self.b.to(exact), self.c.to(exact), self.log_dt.to(exact).exp(),
                          self.config.discretisation)

    def _system(self, x: Tensor, carried: Tensor | None, span: Span) -> tuple[Tensor, Tensor | None]:
        """y = 2 Re(C x) + D u [B,T,H], and the modes after the chunk."""
        modes = self.discrete()
        u = x.to(modes.angle.dtype)
        before = None if carried is None else carried.to(u.dtype)
        starts = span.ticks.starts().expand(x.shape[0], -1) if span.packed else None
        if starts is not None and span.ticks.valid is not None:
            starts = starts & span.ticks.valid
        y, after = S4D_CHUNK(S4DCall(u, modes, before, span.fresh, starts, span.count))
        return y + self.skip.to(u.dtype) * u, after

    def _mix(self, y: Tensor) -> Tensor:
        return F.glu(self.mix(y), dim=-1) if self.config.mixing == "glu" else self.mix(y)

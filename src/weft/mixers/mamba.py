"""Mamba: a selective state-space model for every channel, with a short convolution and a gate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from weft.core.config import PartField, rule
from weft.core.declarations import Declared
from weft.core.layer import LayerState
from weft.core.part_config import About, Dims
from weft.core.recurrent_layer import Carried, Recurred, RecurrentLayer
from weft.core.registry import register
from weft.core.span import Boundaries, Span
from weft.core.state import tensor_field
from weft.linear.linear import DividedDimension, Divisible, Division, Linear
from weft.mixers.base import MixerConfig
from weft.norms.base import NoNormConfig, Norm, NormConfig
from weft.norms.rmsnorm import RMSNormConfig
from weft.ops.gated_scan import GatedScanCall, gated_scan
from weft.ops.operator import widen
from weft.ops.selective_scan_chunks import CHUNK
from weft.ops.short_convolution import MOST_TAPS, causal_convolution, next_history


@register
class MambaConfig(MixerConfig):
    """A selective state-space model for every channel, behind a short convolution and under a gate.

    Attributes:
        d_state: units N of each channel's state.
        expand: inner channels for each feature of the model.
        d_conv: taps of the convolution, in tokens; the last lies on the current token.
        rank: features between the two factors of the map from a token to its steps; None: d_model / 16, rounded up.
        bias: whether the maps from and to the model's features have a bias.
        conv_bias: whether the convolution has one.
        dt_min: smallest initial step, in tokens; steps are drawn log-uniformly.
        dt_max: largest initial step, in tokens.
        dt_floor: least initial step, in tokens, to which smaller ones are raised.
        norm: of each token's step features, B and C, each with weights of its own (Jamba, Falcon-Mamba); none in the
            paper.
    """

    kind: ClassVar[str] = "mamba"
    about = About(
        title="Mamba", also_called=("s6", "selective_ssm", "mamba1"),
        source=("Gu & Dao 2023 (arXiv:2312.00752), algorithm 2, sections 3.4 and 3.6; Lieber et al. 2024 "
                "(arXiv:2403.19887), section 6.4 (norm)"),
        equation=(r"h_t = e^{\Delta_t A} h_{t-1} + \Delta_t B_t u_t, \qquad y_t = C_t h_t + D u_t, \qquad \Delta_t, "
                  r"B_t, C_t \text{ from } u_t"),
        differs=(("s4d", "what is written, read and kept depends on the token, so that it is no convolution."),
                 ("mamba2", "every channel has N decays of its own.")),
        state_size="expand d_model (d_conv - 1) numbers and expand d_model d_state float32 numbers")

    d_state: int = Field(default=16, gt=0)
    expand: int = Field(default=2, gt=0)
    d_conv: int = Field(default=4, gt=0, le=MOST_TAPS)
    rank: int | None = Field(default=None, gt=0)
    bias: bool = False
    conv_bias: bool = True
    dt_min: float = Field(default=0.001, gt=0, allow_inf_nan=False)
    dt_max: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    dt_floor: float = Field(default=1e-4, gt=0, allow_inf_nan=False)
    norm: Annotated[NormConfig, PartField("norm", shares=False)] = NoNormConfig()

    @model_validator(mode="after")
    def _require_order(self) -> Self:
        if self.dt_min > self.dt_max:
            raise rule("dt_min", f"{self.dt_min:g} is above dt_max, {self.dt_max:g}.",
                       "Give the smaller step as dt_min.")
        return self

    def build(self, dims: Dims) -> Mamba:
        return Mamba(dims.d_model, self)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(d_state=3), cls(d_state=2, expand=1, d_conv=2, rank=2, bias=True, conv_bias=False, dt_min=0.2,
                                    dt_max=0.5, dt_floor=0.3, norm=RMSNormConfig())]


@dataclass(frozen=True)
class MambaState(LayerState):
    """The inputs on which the next convolution depends, P = d_conv - 1, and the state of every channel, in float32 or
    better for any dtype of the model; channels last."""

    history: Float[Tensor, "B P C"] = tensor_field()
    h: Float[Tensor, "B N C"] = tensor_field(keeps_dtype=True)


PROJECTIONS = MappingProxyType(dict.fromkeys(("input", "select", "step", "output"), "state-space projections"))


class Mamba(RecurrentLayer[tuple[Tensor, ...]], Divisible):
    """The block of Mamba, for C = expand d_model inner channels.

        [u, z] = W_in x,   u = silu(conv(u)),   [r, B, C] = W_select u,   dt = softplus(W_step r + dt_bias)
        h_t = exp(dt_t A) h_{t-1} + dt_t B_t u_t,   y_t = C_t h_t + D u_t,   out = W_out (y silu(z))

    A = -exp(a_log) [C,N] and D = ``skip`` [C] are learned, A from -1, -2, ..., -N and D from 1; dt_bias is drawn so
    that softplus(dt_bias) is log-uniform. What a token writes (B), reads (C) and how long the state keeps it (dt)
    depend on that token. Steps, states and the sum over states are computed in float32 or better. State: the last
    d_conv - 1 inputs of the convolution, and N numbers a channel. As in the released code, the input is discretised by
    Euler's rule (dt B), where the paper's equation 4 has the zero-order hold.
    """

    state_type = MambaState

    def __init__(self, d_model: int, config: MambaConfig) -> None:
        super().__init__()
        self.config, self.inner = config, config.expand * d_model
        rank = math.ceil(d_model / 16) if config.rank is None else config.rank
        self.widths = [rank, config.d_state, config.d_state]
        self.input = Linear(d_model, 2 * self.inner, config.bias)
        self.convolution = nn.Conv1d(self.inner, self.inner, config.d_conv, groups=self.inner, bias=config.conv_bias)
        self.select = Linear(self.inner, sum(self.widths), bias=False)
        self.norms = nn.ModuleList(config.norm.build_size(size) for size in self.widths)
        self.step = Linear(rank, self.inner, bias=False)
        nn.init.uniform_(self.step.weight, -rank**-0.5, rank**-0.5)
        self.dt_bias = nn.Parameter(_step_bias(self.inner, config))
        self.a_log = nn.Parameter(torch.arange(1.0, config.d_state + 1).log().repeat(self.inner, 1))
        self.skip = nn.Parameter(torch.ones(self.inner))
        self.output = Linear(self.inner, d_model, config.bias)

    def declares(self) -> Declared:
        return Declared(role="state space", child_roles=PROJECTIONS, borders=(CHUNK, self.config.d_conv),
                        dynamics=(self.a_log, self.dt_bias), joins_pieces=True)

    def division(self) -> Division:
        channels = (self.inner,)
        along = ["convolution.weight", "step.weight", "dt_bias", "a_log", "skip"]
        if self.config.conv_bias:
            along.append("convolution.bias")
        return Division({"expand d_model": self.inner}, into={"input": 2 * channels}, through={"select": channels},
                        out_of={"output": channels}, along=dict.fromkeys(along, DividedDimension(0, channels)),
                        summed=("norms",))

    def divide(self, parts: int, place: int) -> None:
        self.inner //= parts
        convolution = self.convolution
        convolution.groups = convolution.in_channels = convolution.out_channels = self.inner
        self.step.out_features = self.inner

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.config.d_conv - 1, self.inner), (self.config.d_state, self.inner)

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> tuple[Tensor, ...]:
        entering, gate = self.input(x).chunk(2, -1)
        u = causal_convolution(entering, self.convolution.weight, self.convolution.bias, before[0], span, silu=True)
        narrow, b, c = (self._normed(index, part, span)
                        for index, part in enumerate(self.select(u).split_with_sizes(self.widths, -1)))
        return entering, gate, u, self.step(narrow), b, c

    def recur(self, projected: tuple[Tensor, ...], before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        entering, gate, u, step, b, c = projected
        history, h = before
        a = -widen(self.a_log).exp().t()
        call = GatedScanCall(u, step, self.dt_bias, a, b, c, self.skip, gate,
                             a.new_zeros(u.shape[0], *a.shape) if h is None else h, boundaries.starts)
        y, after = gated_scan(call, boundaries.valid, boundaries.pieces)
        return Recurred(y, (None if history is None else next_history(entering, history, span), after))

    def _normed(self, index: int, x: Tensor, span: Span) -> Tensor:
        norm = self.norms[index]
        assert isinstance(norm, Norm), "built by the configuration"
        y: Tensor = norm(x, span.ticks.valid)
        return y


def _step_bias(channels: int, config: MambaConfig) -> Float[Tensor, " C"]:
    """The inverse of softplus at steps drawn log-uniformly."""
    low, high = math.log(config.dt_min), math.log(config.dt_max)
    dt = torch.empty(channels).uniform_(low, high).exp().clamp(min=config.dt_floor)
    return dt + (-torch.expm1(-dt)).log()

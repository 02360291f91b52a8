"""Mamba-2: state-space models with one decay for each head and token, by structured state-space duality.

`GatedNorm`: a root-mean-square norm with a gate, before it or after it, over a whole width or by groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.config import rule
from weft.core.declarations import Declared
from weft.core.layer import LayerState, Part
from weft.core.part_config import About, Dims, Settings
from weft.core.recurrent_layer import Carried, Recurred, RecurrentLayer
from weft.core.registry import register
from weft.core.span import Boundaries, Span
from weft.core.state import tensor_field
from weft.linear.linear import Linear
from weft.mixers.base import MixerConfig
from weft.ops.linear_recurrence import linear_recurrence
from weft.ops.linear_recurrence_chunks import CHUNK
from weft.ops.norms import rms_norm
from weft.ops.operator import widen
from weft.ops.short_convolution import MOST_TAPS, causal_convolution, next_history

Order = Literal["gate_first", "norm_first"]


class GatedNormSettings(Settings):
    """The order of gate and norm, and what has a mean square of its own.

    Attributes:
        gate_order: ``gate_first``: norm(y silu(z)); ``norm_first``: norm(y) silu(z).
        per_group: whether each group of features has a mean square of its own; otherwise all have one.
        eps: added to the mean square.
    """

    gate_order: Order = "gate_first"
    per_group: bool = True
    eps: float = Field(default=1e-5, gt=0, allow_inf_nan=False)


class GatedNorm(Part):
    """weight y silu(z) / sqrt(mean((y silu(z))^2) + eps), or with the gate after the norm; in float32 or better.

    Published Mamba-2 models gate first. With several groups their code has a mean for each, and old versions of
    `transformers` had one for the whole width; with one group both are the same.

    Args:
        size: features D.
        groups: into which D divides.
    """

    def __init__(self, size: int, groups: int, settings: GatedNormSettings) -> None:
        super().__init__()
        self.groups, self.settings = groups if settings.per_group else 1, settings
        self.weight = nn.Parameter(torch.ones(size))

    def declares(self) -> Declared:
        return Declared(role="norms", wide_in_training=(self.weight,))

    def forward(self, y: Float[Tensor, "B T D"], z: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The gated and normalised vectors, in float32 or better."""
        gate = F.silu(widen(z))
        if self.settings.gate_order == "norm_first":
            return self._normed(widen(y)) * gate
        return self._normed(widen(y) * gate)

    def _normed(self, y: Tensor) -> Tensor:
        weight = widen(self.weight)
        if self.groups == 1:
            return rms_norm(y, weight, self.settings.eps)
        return rms_norm(y.unflatten(-1, (self.groups, -1)), None, self.settings.eps).flatten(-2) * weight


LARGEST_RATE = 16.0
"""A is drawn uniformly from [1, 16], as in the published code."""


class StepSettings(Settings):
    """Steps dt, in units of one token: drawn log-uniformly from ``dt_min`` to ``dt_max`` at first and raised to
    ``dt_floor``; in use kept between ``least`` and ``most`` (None: no bound).

    Attributes:
        dt_min: smallest initial step dt, in tokens; drawn log-uniformly.
        dt_max: largest initial step, in tokens.
        dt_floor: least initial step, to which smaller ones are raised, in tokens.
        least: least step in use, in tokens.
        most: largest step in use, in tokens; None: no bound.
    """

    dt_min: float = Field(default=0.001, gt=0, allow_inf_nan=False)
    dt_max: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    dt_floor: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    least: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    most: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _require_order(self) -> Self:
        if self.dt_min > self.dt_max:
            raise rule("dt_min", f"{self.dt_min:g} is above dt_max, {self.dt_max:g}.",
                       "Give the smaller step as dt_min.")
        if self.most is not None and self.least > self.most:
            raise rule("least", f"{self.least:g} is above most, {self.most:g}.", "Give the smaller bound as least.")
        return self


class Factors(Settings):
    """Constant factors on what the layer reads, and on the projected gate z, x, B, C and dt, before the convolution;
    models whose rates were tuned at another width have them (Falcon-H1).

    Attributes:
        input: on what the layer reads.
        z: on the projected gate.
        x: on the projected x.
        b: on the projected B.
        c: on the projected C.
        dt: on the projected steps.
    """

    input: float = Field(default=1.0, allow_inf_nan=False)
    z: float = Field(default=1.0, allow_inf_nan=False)
    x: float = Field(default=1.0, allow_inf_nan=False)
    b: float = Field(default=1.0, allow_inf_nan=False)
    c: float = Field(default=1.0, allow_inf_nan=False)
    dt: float = Field(default=1.0, allow_inf_nan=False)


@register
class Mamba2Config(MixerConfig):
    """The mixer of Mamba-2: a short convolution, H heads of a state-space model with scalar A, a gate and a norm.

    Attributes:
        n_heads: heads H; None: 2 d_model / d_head, as published.
        d_head: features P of a head.
        d_state: features N of a head's B and C.
        n_groups: G; B and C are shared by H / G consecutive heads.
        d_conv: taps of the causal convolution over x, B and C, in tokens; the last lies on the current token.
        bias: whether the projections into and out of the layer have a bias.
        conv_bias: whether the convolution has one.
        step_sizes: the range of dt, at first and in use.
        norm: of the gated result; None: the gate alone.
        multipliers: constant factors; None: all 1.
    """

    kind: ClassVar[str] = "mamba2"
    about = About(
        title="Mamba-2", also_called=("mamba-2", "ssd"),
        source="Dao & Gu 2024 (Mamba-2, arXiv:2405.21060), sections 6 and 7",
        equation=(r"h_t = e^{\Delta_t A} h_{t-1} + \Delta_t B_t x_t^{\top}, \qquad y_t = C_t h_t + D x_t, \qquad A "
                  r"\in \mathbb{R}"),
        differs=(("mamba", "one decay for a head, so that chunks are matrix products and states can be larger."),
                 ("retention", "decays and what is written depend on the token."),
                 ("gated_delta_net", "what is stored is only added to.")),
        state_size=("n_heads d_head d_state float32 numbers and (d_conv - 1) (n_heads d_head + 2 n_groups d_state) "
                    "numbers"))

    n_heads: int | None = Field(default=None, gt=0)
    d_head: int = Field(default=64, gt=0)
    d_state: int = Field(default=128, gt=0)
    n_groups: int = Field(default=1, gt=0)
    d_conv: int = Field(default=4, gt=0, le=MOST_TAPS)
    bias: bool = False
    conv_bias: bool = True
    step_sizes: StepSettings = StepSettings()
    norm: GatedNormSettings | None = GatedNormSettings()
    multipliers: Factors | None = None

    def build(self, dims: Dims) -> Mamba2:
        heads = self.n_heads
        if heads is None and 2 * dims.d_model % self.d_head:
            raise dims.problem("d_head", f"2 d_model, {2 * dims.d_model}, does not divide into heads of {self.d_head} "
                               "features.", "Give n_heads, or another d_head.")
        heads = 2 * dims.d_model // self.d_head if heads is None else heads
        if heads % self.n_groups:
            raise dims.problem("n_groups", f"{heads} heads do not divide into {self.n_groups} groups.",
                               "Choose n_groups among the divisors of the number of heads.")
        return Mamba2(self, heads, dims.d_model)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=4, d_head=2, d_state=3, n_groups=2),
                cls(d_head=4, d_state=2, d_conv=2, bias=True, conv_bias=False,
                    step_sizes=StepSettings(least=0.01, most=0.05),
                    norm=GatedNormSettings(gate_order="norm_first", per_group=False)),
                cls(n_heads=3, d_head=2, d_state=2, norm=None, multipliers=Factors(input=0.5, z=2.0, b=0.7))]


@dataclass(frozen=True)
class Mamba2State(LayerState):
    """The inputs that the convolution still reaches, D = H P + 2 G N, and each head's state, in float32 or better."""

    history: Float[Tensor, "B L D"] = tensor_field()
    states: Float[Tensor, "B H N P"] = tensor_field(keeps_dtype=True)


ROLES = MappingProxyType({"input": "state-space projections", "output": "state-space projections"})


class Mamba2(RecurrentLayer[tuple[Tensor, ...]]):
    """h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t^T,   y_t = C_t h_t + D x_t          h [N,P] for each head

    with dt = softplus(x W + bias), kept within its limits, A = -exp(log_rate) one number for each head, and x, B and C
    after a causal depthwise convolution and silu. B takes the step by Euler's rule, dt B. The result goes through a
    gate and a norm (`GatedNorm`) to the output projection. All that concerns the states is computed in float32 or
    better, by the operation `linear_recurrence`, whose chunks are the matrix products of the paper's section 6, and
    which never repeats B and C for the heads of a group. The states and the convolution begin anew in every document.

    State: H P N numbers in float32, and d_conv - 1 inputs of the convolution. Parameters are those of the published
    code, whose names are in_proj (z, x, B, C, dt), conv1d, A_log, dt_bias, D, norm and out_proj.
    """

    state_type = Mamba2State

    def __init__(self, config: Mamba2Config, heads: int, d_model: int) -> None:
        super().__init__()
        self.config, self.heads = config, heads
        self.inner, shared = heads * config.d_head, config.n_groups * config.d_state
        self.parts = [self.inner, shared, shared]
        self.input = Linear(d_model, self.inner + sum(self.parts) + heads, bias=config.bias)
        self.convolution = nn.Conv1d(sum(self.parts), sum(self.parts), config.d_conv, groups=sum(self.parts),
                                     bias=config.conv_bias)
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(1, LARGEST_RATE).log())
        self.dt_bias = nn.Parameter(_first_steps(config.step_sizes, heads))
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = None if config.norm is None else GatedNorm(self.inner, config.n_groups, config.norm)
        self.output = Linear(self.inner, d_model, bias=config.bias)

    def declares(self) -> Declared:
        return Declared(role="state space", child_roles=ROLES, borders=(CHUNK, self.config.d_conv),
                        dynamics=(self.log_rate, self.dt_bias, self.skip), joins_pieces=True)

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        config = self.config
        return (config.d_conv - 1, sum(self.parts)), (self.heads, config.d_state, config.d_head)

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> tuple[Tensor, ...]:
        z, inputs, dt = self._projected(x)
        mixed = causal_convolution(inputs, self.convolution.weight, self.convolution.bias, before[0], span, silu=True)
        return z, inputs, dt, mixed

    def recur(self, projected: tuple[Tensor, ...], before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        z, inputs, dt, mixed = projected
        y, states = self._system(mixed, dt, before[1], boundaries)
        gated = (y * F.silu(widen(z)) if self.norm is None else self.norm(y, z)).to(z.dtype)
        return Recurred(gated, (None if before[0] is None else next_history(inputs, before[0], span), states))

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gate [B,T,H P], what is convolved [B,T,H P + 2 G N], and dt before its bias [B,T,H]."""
        factors, widths = self.config.multipliers, [self.inner, sum(self.parts), self.heads]
        if factors is None:
            z, inputs, dt = self.input(x).split_with_sizes(widths, -1)
            return z, inputs, dt
        z, inputs, dt = self.input(x * factors.input).split_with_sizes(widths, -1)
        x, b, c = inputs.split_with_sizes(self.parts, -1)
        return z * factors.z, torch.cat([x * factors.x, b * factors.b, c * factors.c], -1), dt * factors.dt

    def _system(self, mixed: Tensor, dt: Tensor, before: Tensor | None,
                boundaries: Boundaries) -> tuple[Tensor, Tensor]:
        """y [B,T,H P] and the states after the chunk."""
        config = self.config
        x, b, c = mixed.split_with_sizes(self.parts, -1)
        x = widen(x).unflatten(-1, (self.heads, -1))
        b, c = (part.unflatten(-1, (config.n_groups, -1)) for part in (b, c))
        dt = F.softplus(widen(dt) + self.dt_bias)
        if config.step_sizes.least > 0 or config.step_sizes.most is not None:
            dt = dt.clamp(config.step_sizes.least, config.step_sizes.most)
        decay = -(dt * self.log_rate.exp())
        y, after = linear_recurrence(c, b, x * dt[..., None], decay[..., None], before, *boundaries)
        return torch.addcmul(y, x, self.skip[:, None].to(x.dtype)).flatten(2), after


def _first_steps(steps: StepSettings, heads: int) -> Tensor:
    """Drawn steps, as what softplus maps to them."""
    dt = torch.empty(heads).uniform_(math.log(steps.dt_min), math.log(steps.dt_max)).exp().clamp(min=steps.dt_floor)
    return dt + torch.log(-torch.expm1(-dt))

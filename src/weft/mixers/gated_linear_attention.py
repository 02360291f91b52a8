"""Gated linear attention: a decay for every feature of every token's key.

`GatedMemory`, the base of retention and gated linear attention: a matrix for each head that decays, what a token
reads from it normalised, and a gate.

    S_t = diag(a_t) S_{t-1} + k_t v_t^T,   o_t = q_t S_t,   y = (silu(x W_g) norm(o)) W_o
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import Annotated, ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.clock import Ticks
from weft.core.config import PartField
from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.recurrent_layer import Carried, MatrixState, Recurred, RecurrentLayer
from weft.core.registry import register
from weft.core.span import Boundaries, Span
from weft.linear.linear import Linear
from weft.mixers.base import MixerConfig
from weft.mixers.self_attention import HeadSizes
from weft.norms.base import Norm, NormConfig
from weft.norms.layernorm import LayerNormConfig
from weft.norms.rmsnorm import RMSNormConfig
from weft.ops.linear_recurrence import linear_recurrence
from weft.ops.linear_recurrence_chunks import CHUNK
from weft.ops.operator import widen

PROJECTIONS = MappingProxyType(dict.fromkeys(("qkvg", "output"), "memory projections"))


class GatedMemory(RecurrentLayer[tuple[Tensor, Tensor]], ABC):
    """H matrices [E,F] that decay. The recurrence is computed in float32 or better for any dtype of the model. State:
    H E F numbers.

    Args:
        sizes: of the heads, as many for keys as for queries.
        norm: of what each head reads, F features, with one set of weights for all heads.
        gate_bias: whether the gate has a bias.
    """

    state_type = MatrixState

    def __init__(self, sizes: HeadSizes, scale: float, norm: NormConfig, gate_bias: bool, dims: Dims) -> None:
        super().__init__()
        self.sizes, self.scale = sizes, scale
        self.widths = [*sizes.split(), sizes.heads * sizes.d_value]
        self.qkvg = Linear(dims.d_model, sum(self.widths), bias=False)
        self.gate_bias = torch.nn.Parameter(torch.zeros(self.widths[-1])) if gate_bias else None
        self.norm: Norm = norm.build_size(sizes.d_value)
        self.output = Linear(self.widths[-1], dims.d_model, bias=False)

    @abstractmethod
    def log_decay(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "#B #T H #E"]:
        """The logarithm of the decays, in float32 or better."""

    def turned(self, x: Float[Tensor, "B T H E"], ticks: Ticks) -> Float[Tensor, "B T H E"]:
        """Queries or keys, rotated according to their positions where the mixer does so."""
        return x

    def declares(self) -> Declared:
        return Declared(role="memory", child_roles=PROJECTIONS, borders=(CHUNK,), joins_pieces=True)

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.sizes.heads, self.sizes.d_head, self.sizes.d_value),)

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> tuple[Tensor, Tensor]:
        return self.qkvg(x), self.log_decay(x)

    def recur(self, projected: tuple[Tensor, Tensor], before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        q, k, v, gate = projected[0].split_with_sizes(self.widths, -1)
        shape = (self.sizes.heads, -1)
        q = self.turned(widen(q).unflatten(-1, shape) * self.scale, span.ticks)
        k = self.turned(widen(k).unflatten(-1, shape), span.ticks)
        o, sums = linear_recurrence(q, k, widen(v).unflatten(-1, shape), projected[1], before[0], *boundaries)
        o = self.norm(o).flatten(2).to(gate.dtype)
        return Recurred(F.silu(gate if self.gate_bias is None else gate + self.gate_bias) * o, (sums,))


@register
class GatedLinearAttentionConfig(MixerConfig):
    """Linear attention without feature map and normaliser, whose state decays by what each token says.

    Attributes:
        n_heads: heads H.
        d_head: features of a head's queries and keys; None: d_model / (2 n_heads), as in the paper.
        d_value: features of a head's values; None: d_model / n_heads.
        decay_rank: features between the two factors of the map from a token to its decays.
        decay_temperature: tau; the larger, the slower decays are at first.
        norm: of each head's result; the same weights for all heads.
    """

    kind: ClassVar[str] = "gated_linear_attention"
    about = About(
        also_called=("gla",), source="Yang et al. 2024 (GLA), equation 3 and section 4.4",
        equation=(r"S_t = \operatorname{diag}(a_t) S_{t-1} + k_t v_t^{\top}, \qquad a_t = \sigma(W_2 W_1 x_t + b)^{1 "
                  r"/ \tau}"),
        differs=(("retention", "decays depend on the token and differ by feature."),
                 ("linear_attention", "forgets, and has no normaliser."),
                 ("delta_net", "nothing is corrected.")),
        state_size="n_heads d_head d_value float32 numbers")

    n_heads: int = Field(default=4, gt=0)
    d_head: int | None = Field(default=None, gt=0)
    d_value: int | None = Field(default=None, gt=0)
    decay_rank: int = Field(default=16, gt=0)
    decay_temperature: float = Field(default=16.0, gt=0, allow_inf_nan=False)
    norm: Annotated[NormConfig, PartField("norm", shares=False)] = RMSNormConfig(eps=1e-5)

    def build(self, dims: Dims) -> GatedLinearAttention:
        sizes = []
        for name, given, divisor in (("d_head", self.d_head, 2 * self.n_heads),
                                     ("d_value", self.d_value, self.n_heads)):
            if given is None and dims.d_model % divisor:
                raise dims.problem(name, f"d_model {dims.d_model} does not divide by {divisor}, from which {name} "
                                   "follows.", f"Give {name}, or another number of heads.")
            sizes.append(dims.d_model // divisor if given is None else given)
        return GatedLinearAttention(self, HeadSizes(self.n_heads, self.n_heads, *sizes), dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2, decay_rank=3), cls(n_heads=3, d_head=2, d_value=5, decay_rank=2, decay_temperature=1.0,
                                            norm=LayerNormConfig())]


class GatedLinearAttention(GatedMemory):
    """S_t = diag(a_t) S_{t-1} + k_t v_t^T with a_t = sigmoid(x_t W_1 W_2 + b)^(1 / tau) for each of the H d_head
    features of keys, W_1 of ``rank`` columns; queries are scaled by 1 / sqrt(d_head)."""

    def __init__(self, config: GatedLinearAttentionConfig, sizes: HeadSizes, dims: Dims) -> None:
        super().__init__(sizes, 1 / math.sqrt(sizes.d_head), config.norm, True, dims)
        self.config = config
        self.narrow = Linear(dims.d_model, config.decay_rank, bias=False)
        self.wide = Linear(config.decay_rank, sizes.heads * sizes.d_head, bias=True)
        nn.init.zeros_(self.wide.bias)

    def log_decay(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H E"]:
        logits = self.wide(self.narrow(x))
        log_decay: Tensor = F.logsigmoid(widen(logits)) / self.config.decay_temperature
        return torch.unflatten(log_decay, -1, (self.sizes.heads, -1))

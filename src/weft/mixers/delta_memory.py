"""`DeltaMemory`, the base of DeltaNet and its gated forms: a matrix for each head that every token corrects.

    S_t = (I - beta_t k_t k_t^T) diag(alpha_t) S_{t-1} + beta_t k_t v_t^T,   o_t = q_t S_t,   y = gated(norm(o)) W_o

A token looks up what the memory returns for its key, k^T diag(alpha) S, and moves that towards its value by the rate
beta. Queries, keys and values pass a short causal convolution and SiLU; queries and keys have length 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.config import PartField
from weft.core.declarations import Declared
from weft.core.layer import LayerState
from weft.core.part_config import Dims
from weft.core.recurrent_layer import Carried, Recurred, RecurrentLayer
from weft.core.span import Boundaries, Span
from weft.core.state import tensor_field
from weft.linear.linear import Linear
from weft.mixers.base import MixerConfig
from weft.norms.base import Norm, NormConfig
from weft.norms.rmsnorm import RMSNormConfig
from weft.ops.delta_rule import delta_rule
from weft.ops.linear_recurrence_chunks import CHUNK
from weft.ops.operator import widen
from weft.ops.short_convolution import MOST_TAPS, causal_convolution, next_history


class DeltaSizes(NamedTuple):
    """Key heads, value heads (a multiple of them), and the sizes of keys and of values."""

    heads: int
    value_heads: int
    d_head: int
    d_value: int

    def split(self) -> list[int]:
        """Widths of the fused projection: queries, keys, values."""
        return [self.heads * self.d_head, self.heads * self.d_head, self.value_heads * self.d_value]


class DeltaMemoryConfig(MixerConfig):
    """Options of all memories that are corrected.

    Attributes:
        n_heads: heads of queries and keys.
        d_head: features of a head's queries and keys; None: d_model / n_heads.
        d_value: features of a head's values; None: as the mixer says.
        d_conv: taps of the short convolution, in tokens; None: there is none.
        negative_eigenvalues: whether the rate reaches from 0 to 2 instead of 1, so that a token may also reverse what
            the memory holds for its key, which tracking a state needs (Grazzi et al. 2025).
        norm: of each head's result; the same weights for all heads.
    """

    n_heads: int = Field(default=4, gt=0)
    d_head: int | None = Field(default=None, gt=0)
    d_value: int | None = Field(default=None, gt=0)
    d_conv: int | None = Field(default=4, gt=0, le=MOST_TAPS)
    negative_eigenvalues: bool = False
    norm: Annotated[NormConfig, PartField("norm", shares=False)] = RMSNormConfig(eps=1e-5)

    def sizes(self, dims: Dims, value_heads: int | None = None, expansion: int = 1) -> DeltaSizes:
        """The sizes of the heads.

        Args:
            value_heads: None: as many as of queries and keys.
            expansion: of values relative to keys where their size is not given.

        Raises:
            ConfigError: the numbers of heads or d_model do not divide.
        """
        heads = self.n_heads
        count = heads if value_heads is None else value_heads
        if count % heads:
            raise dims.problem("n_value_heads", f"{count} value heads do not divide among {heads} heads of queries and "
                               "keys.", "Choose n_value_heads among the multiples of n_heads.")
        if self.d_head is None and dims.d_model % heads:
            raise dims.problem("n_heads", f"d_model {dims.d_model} does not divide into {heads} heads.",
                               "Choose another number of heads, or give d_head.")
        size = dims.d_model // heads if self.d_head is None else self.d_head
        return DeltaSizes(heads, count, size, expansion * size if self.d_value is None else self.d_value)


@dataclass(frozen=True)
class DeltaState(LayerState):
    """The memory of every value head, in float32 or better for any dtype of the model, and the projected queries, keys
    and values that the convolution of the next token reads, P = kernel - 1."""

    sums: Float[Tensor, "B H E F"] = tensor_field(keeps_dtype=True)
    history: Float[Tensor, "B P C"] = tensor_field()


DeltaInputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""The chunk [B,T,D]; queries, keys and values [B,T,C] before their convolution, and after it; beta before its sigmoid
[B,T,H]; the logarithm of alpha [B,T,H,1 or E], None for 0; the factor of what heads read [B,T,V], None for 1."""


class DeltaMemory(RecurrentLayer[DeltaInputs], ABC):
    """Value heads H, each with a memory [E,F]; H / K of them share a head of queries and keys. The memory is computed
    in float32 or better for any dtype of the model. State: H E F numbers, and kernel - 1 tokens' queries, keys and
    values before their convolution.

    Lengths are normalised as x / sqrt(sum(x^2) + 10^-6), and queries are scaled by 1 / sqrt(E), as in released code.
    """

    state_type = DeltaState
    output: Linear

    def __init__(self, config: DeltaMemoryConfig, sizes: DeltaSizes, dims: Dims) -> None:
        super().__init__()
        self.sizes, self.kernel, self.widths = sizes, config.d_conv or 1, sizes.split()
        self.largest_rate = 2.0 if config.negative_eigenvalues else 1.0
        width, out = sum(self.widths), self.widths[2]
        self.qkv = Linear(dims.d_model, width, bias=False, outputs=dict(zip("qkv", self.widths, strict=True)))
        self.convolution = (None if config.d_conv is None else
                            nn.Conv1d(width, width, config.d_conv, groups=width, bias=False))
        self.rate = Linear(dims.d_model, sizes.value_heads, bias=False)
        self.norm: Norm = config.norm.build_size(sizes.d_value)
        self.output = Linear(out, dims.d_model, bias=False)

    @abstractmethod
    def log_decay(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H #E"] | None:
        """The logarithm of alpha, in float32 or better; None: 0."""

    def gating(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"] | None:
        """The factor of the heads' readings after the norm; None: 1."""
        return None

    def declares(self) -> Declared:
        maps = [name for name, child in self.named_children() if isinstance(child, Linear)]
        return Declared(role="memory", child_roles=dict.fromkeys(maps, "memory projections"),
                        borders=(self.kernel, CHUNK), joins_pieces=True)

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        sizes = self.sizes
        return (sizes.value_heads, sizes.d_head, sizes.d_value), (self.kernel - 1, sum(self.widths))

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> DeltaInputs:
        qkv = mixed = self.qkv(x)
        if self.convolution is not None:
            mixed = causal_convolution(qkv, self.convolution.weight, None, before[1], span)
        return x, qkv, F.silu(mixed), self.rate(x), self.log_decay(x), self.gating(x)

    def recur(self, projected: DeltaInputs, before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        x, qkv, mixed, rate, decay, gating = projected
        q, k, v = self._heads(mixed)
        write = k * (self.largest_rate * widen(rate).sigmoid())[..., None]
        read = k if decay is None else k * decay.exp()
        o, sums = delta_rule(q, write, v, read, -write, decay, before[0], *boundaries)
        o = self.norm(o).flatten(2).to(x.dtype)
        return Recurred(o if gating is None else o * gating,
                        (sums, None if before[1] is None else next_history(qkv, before[1], span)))

    def _heads(self, mixed: Float[Tensor, "B T C"]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [B,T,H,E] of length 1, queries scaled, and values [B,T,H,F]."""
        q, k, v = widen(mixed).split_with_sizes(self.widths, -1)
        group = self.sizes.value_heads // self.sizes.heads
        q, k = (_unit(part.unflatten(-1, (self.sizes.heads, -1))) for part in (q, k))
        if group > 1:
            q, k = q.repeat_interleave(group, 2), k.repeat_interleave(group, 2)
        return q * self.sizes.d_head ** -0.5, k, v.unflatten(-1, (self.sizes.value_heads, -1))


def _unit(x: Float[Tensor, "... E"]) -> Float[Tensor, "... E"]:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def inverse_softplus(x: Tensor) -> Tensor:
    """The number whose softplus is x."""
    return x + (-torch.expm1(-x)).log()


def time_steps(count: int) -> Float[Tensor, " N"]:
    """Biases whose softplus is distributed log-uniformly from 0.001 to 0.1, as the steps of Mamba are at first."""
    return inverse_softplus(torch.empty(count).uniform_(math.log(0.001), math.log(0.1)).exp())

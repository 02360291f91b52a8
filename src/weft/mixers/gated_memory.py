"""`GatedMemory`, the base of retention and gated linear attention: a matrix for each head that decays, what a token
reads from it normalised, and a gate.

    S_t = diag(a_t) S_{t-1} + k_t v_t^T,   o_t = q_t S_t,   y = (silu(x W_g) norm(o)) W_o
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.core.clock import Ticks
from weft.core.declarations import Declared
from weft.core.part_config import Dims
from weft.core.recurrent_layer import Carried, MatrixState, Recurred, RecurrentLayer
from weft.core.span import Boundaries, Span
from weft.linear.linear import Linear
from weft.mixers.heads import HeadSizes
from weft.norms.base import Norm, NormConfig
from weft.ops.linear_recurrence import linear_recurrence
from weft.ops.linear_recurrence_chunks import CHUNK
from weft.ops.operator import widen

PROJECTIONS = MappingProxyType(dict.fromkeys(("qkvg", "output"), "memory projections"))


class GatedMemory(RecurrentLayer[tuple[Tensor, Tensor]], ABC):
    """H matrices [E,F] that decay. The recurrence is computed in float32 or better for any dtype of the model. State:
    H E F numbers.

    Args:
        sizes: of the heads, as many for keys as for queries.
        scale: factor on queries.
        norm: of what each head reads, F features, with one set of weights for all heads.
        gate_bias: whether the gate has a bias.
        dims: of the model.
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

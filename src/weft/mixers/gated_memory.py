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

from weft.core.clock import Clock, Ticks
from weft.core.declarations import Declared
from weft.core.layer import Layer, LayerState
from weft.core.output import Output
from weft.core.part_config import Dims
from weft.core.span import Boundaries, Memory, Span
from weft.linear.linear import Linear
from weft.mixers.heads import HeadSizes
from weft.mixers.kernel_attention import MatrixState
from weft.norms.base import Norm, NormConfig
from weft.ops.linear_recurrence import linear_recurrence
from weft.ops.linear_recurrence_chunks import CHUNK
from weft.ops.operator import widen

PROJECTIONS = MappingProxyType(dict.fromkeys(("qkvg", "output"), "memory projections"))


class GatedMemory(Layer, ABC):
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

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> MatrixState:
        shape = (clock.seen.shape[0], self.sizes.heads, self.sizes.d_head, self.sizes.d_value)
        exact = torch.promote_types(dtype, torch.float32)
        return MatrixState(clock, torch.zeros(shape, dtype=exact, device=clock.seen.device))

    def run(self, x: Float[Tensor, "B T D"], state: LayerState | None, span: Span) -> Output[LayerState]:
        if x.shape[1] == 0:
            return Output(x, state)
        assert state is None or isinstance(state, MatrixState), "checked by Layer.forward"
        *projected, gate = self.qkvg(x).split_with_sizes(self.widths, -1)
        boundaries = Boundaries.of(span, x.shape[0])
        decay = self.log_decay(x)
        with torch.autocast(x.device.type, enabled=False):
            q, k, v = (widen(part).unflatten(-1, (self.sizes.heads, -1)) for part in projected)
            q, k = self.turned(q * self.scale, span.ticks), self.turned(k, span.ticks)
            o, sums = linear_recurrence(q, k, v, decay, None if state is None else state.sums, *boundaries)
            o = self.norm(o).flatten(2).to(gate.dtype)
        y = self.output(F.silu(gate if self.gate_bias is None else gate + self.gate_bias) * o)
        return Output(y, None if state is None else MatrixState(span.after, sums.to(state.sums.dtype)))

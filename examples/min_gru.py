"""A mixer from outside Weft: the minimal gated recurrent unit, whose gate does not read its memory."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from weft.core.part_config import About, Dims
from weft.core.recurrent_layer import Carried, Recurred, RecurrentLayer
from weft.core.registry import register
from weft.core.span import Boundaries, Span
from weft.linear.linear import Linear
from weft.mixers.base import MixerConfig
from weft.ops.diagonal_recurrence import diagonal_recurrence
from weft.ops.operator import widen


@register
class MinGRUConfig(MixerConfig):
    """h_t = (1 - z_t) h_(t-1) + z_t (W_h x_t + c) with z_t = sigmoid(W_z x_t + b), and y_t = W_y h_t + d."""

    kind: ClassVar[str] = "min_gru"
    about = About(
        title="minGRU", source="Feng et al. 2024 (arXiv:2410.01201), section 3.1",
        equation=r"z_t = \sigma(W_z x_t + b), \qquad h_t = (1 - z_t) \odot h_{t-1} + z_t \odot (W_h x_t + c)",
        differs=(("gru", "neither the gate nor what enters reads the memory, so that a row is one parallel scan."),),
        state_size="d_model float32 numbers")

    def build(self, dims: Dims) -> MinGRU:
        return MinGRU(dims.d_model)


class MinGRU(RecurrentLayer[Tensor]):
    """The minimal gated recurrent unit of as many hidden units as features. State: h, in float32 or better."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.input, self.output, self.d_model = Linear(d_model, 2 * d_model), Linear(d_model, d_model), d_model

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.d_model,),)

    def project(self, x: Tensor, before: Carried, span: Span) -> Tensor:
        projected: Tensor = self.input(x)
        return projected

    def recur(self, projected: Tensor, before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        gate, entering = widen(projected).chunk(2, -1)
        h, last = diagonal_recurrence(gate.sigmoid() * entering, F.logsigmoid(-gate), before[0], *boundaries)
        return Recurred(h.to(projected.dtype), (last,))

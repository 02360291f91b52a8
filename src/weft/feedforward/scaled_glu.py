"""A gated linear unit with constant factors on its gate and on its result."""

from __future__ import annotations

from typing import ClassVar, Self, final

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.feedforward.base import FeedForwardConfig
from weft.feedforward.glu import GLU
from weft.ops.activations import Activation
from weft.ops.gated_product import gated_product


@register
class ScaledGLUConfig(FeedForwardConfig):
    """Gated linear unit of a model whose rates were tuned at another width.

    Attributes:
        d_ff: hidden width, in features; None: 8/3 d_model, rounded up to a multiple of 8.
        activation: of the gate.
        bias: whether all three maps have one.
        gate_factor: on the gate, before its activation.
        factor: on the result.
    """

    kind: ClassVar[str] = "scaled_glu"
    about = About(
        source="Zuo et al. 2025 (Falcon-H1, arXiv:2507.22448), section 3.2",
        equation=r"y = c\, W_{\text{down}} \left( f(c_g W_{\text{gate}} x) \odot W_{\text{up}} x \right)",
        differs=(("glu", "has constant factors on the gate and on the result, with which rates carry over between "
                         "widths."),))

    d_ff: int | None = Field(default=None, gt=0)
    activation: Activation = "silu"
    bias: bool = False
    gate_factor: float = Field(default=1.0, allow_inf_nan=False)
    factor: float = Field(default=1.0, allow_inf_nan=False)

    def build(self, dims: Dims) -> ScaledGLU:
        width = -(-dims.d_model // 3) * 8 if self.d_ff is None else self.d_ff
        return ScaledGLU(self, dims.d_model, width)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(d_ff=5, bias=True, gate_factor=0.5, factor=-1.5)]


@final
class ScaledGLU(GLU):
    """y = factor (W_down (f(gate_factor (W_gate x + b_gate)) * (W_up x + b_up)) + b_down); see `GLU`."""

    def __init__(self, config: ScaledGLUConfig, d_model: int, d_ff: int) -> None:
        super().__init__(d_model, d_ff, config.activation, bias=config.bias)
        self.config = config

    def each(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        gate = self.gate(x) * self.config.gate_factor
        y: Tensor = self.down(gated_product(gate, self.up(x), self.activation))
        return y * self.config.factor

"""Matrices in eight bits an entry."""

from __future__ import annotations

from typing import ClassVar, Self, final

from jaxtyping import Float, Int64
from torch import Tensor

from weft.core.declarations import Declared
from weft.core.part_config import About
from weft.core.registry import register
from weft.linear.quantised import QuantiseConfig, QuantisedMatrix
from weft.ops.int8_linear import int8_linear, quantised


@final
class Int8Matrix(QuantisedMatrix):
    """W as s Q: ``values`` Q [out,in], integers from -127 to 127, and ``scale`` s [out], the largest entry of each row
    over 127, in float32 or wider in every dtype of the model. Each entry of s Q is within s / 2 of that of W."""

    def __init__(self, weight: Float[Tensor, "out in"]) -> None:
        super().__init__(weight, *quantised(weight))

    def declares(self) -> Declared:
        return Declared(exact=(self.scale,))

    def weight(self) -> Float[Tensor, "out in"]:
        return (self.values.to(self.scale.dtype) * self.scale[:, None]).to(self.like.dtype)

    def rows(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape in"]:
        return (self.values[tokens].to(self.scale.dtype) * self.scale[tokens][..., None]).to(self.like.dtype)

    def product(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        return int8_linear(x, self.values, self.scale)

    def off(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... #out"]:
        """s / 2 for each entry of the matrix, times the entry of x."""
        return x.abs().to(self.scale.dtype).sum(-1, keepdim=True) * (self.scale / 2)

    def off_rows(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape #in"]:
        return self.scale[tokens][..., None] / 2


@register
class Int8Config(QuantiseConfig):
    """Weights in eight bits: each row of a matrix as integers from -127 to 127 times one number, rounded to the
    nearest. Activations stay in the model's floats. The matrices do not train; LoRA may be applied to them. A tied
    embedding is quantised with its readout."""

    kind: ClassVar[str] = "int8"
    about = About(
        also_called=("quantise", "quantize", "quantised", "quantized", "quantisation", "quantization", "eight_bit"),
        source="Dettmers et al. 2022 (arXiv:2208.07339), section 2 (absolute maximum, one scale a row)",
        equation=(r"W_r \approx s_r\, q_r, \qquad s_r = \frac{\max_j |W_{rj}|}{127}, \quad q_r \in \{-127, \ldots, "
                  r"127\}"),
        differs=(("int4", "twice the bits, and one scale for a row."),))

    def matrix(self, weight: Tensor) -> Int8Matrix:
        return Int8Matrix(weight)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(maps=["*"])]

"""Matrices in four bits an entry."""

from __future__ import annotations

from typing import ClassVar, Self, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from weft.core.declarations import Declared
from weft.core.part_config import About
from weft.core.registry import register
from weft.linear.quantised import QuantiseConfig, QuantisedMatrix
from weft.ops.int4_linear import FARTHEST, GROUP, four_bits, int4_linear, matrix
from weft.ops.linear import linear


@final
class Int4Matrix(QuantisedMatrix):
    """W as integers from -8 to 7, two in each byte of ``values`` [out,16 G], and one ``scale`` [out,G] in bfloat16, in
    every dtype of the model, for each group of 32 inputs (`weft.ops.int4_linear`): 4.5 bits an entry. Each entry is
    within 1.02 steps of that of W, half a step except beyond the largest integer."""

    def __init__(self, weight: Float[Tensor, "out in"]) -> None:
        super().__init__(weight, *four_bits(weight))

    def declares(self) -> Declared:
        return Declared(same_dtype=(self.scale,))

    def weight(self) -> Float[Tensor, "out in"]:
        return self._floats(self.values, self.scale)

    def rows(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape in"]:
        return self._floats(self.values[tokens], self.scale[tokens])

    def _floats(self, values: Tensor, scale: Tensor) -> Tensor:
        wide = torch.promote_types(self.like.dtype, torch.float32)
        return matrix(values, scale, self.in_features, wide).to(self.like.dtype)

    def product(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        return int4_linear(x, self.values, self.scale)

    def off(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... #out"]:
        wide = torch.promote_types(x.dtype, torch.float32)
        sizes = F.pad(x.abs().to(wide), (0, -x.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP)).sum(-1)
        return linear(FARTHEST * sizes, self.scale.abs().to(wide))

    def off_rows(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape #in"]:
        steps = self.scale[tokens].abs().float().repeat_interleave(GROUP, -1)
        return FARTHEST * steps[..., :self.in_features]


@register
class Int4Config(QuantiseConfig):
    """Weights in four and a half bits: integers from -8 to 7, and for each group of 32 inputs of a row one scale in
    bfloat16, the one of two that rounds with the smaller squared error. Activations stay in the model's floats. The
    matrices do not train; LoRA may be applied to them. A tied embedding is quantised with its readout."""

    kind: ClassVar[str] = "int4"
    about = About(
        also_called=("nf4", "fp4", "four_bit"),
        source=("Dettmers & Zettlemoyer 2023 (arXiv:2212.09720), section 2 (a scale for each block of weights; theirs "
                "are of 64 and float data types beside integers)"),
        equation=r"W_{r,g} \approx s_{r,g}\, q_{r,g}, \qquad q \in \{-8, \ldots, 7\}^{32}",
        differs=(("int8", "half the bits, with a scale for 32 inputs in place of a whole row."),))

    def matrix(self, weight: Tensor) -> Int4Matrix:
        return Int4Matrix(weight)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(maps=["*"])]

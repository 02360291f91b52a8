"""Root-mean-square normalisation, plain and with Gemma's unit offset."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor, nn

from weft.core.config import rule
from weft.core.declarations import Declared, HasInferenceForm
from weft.core.part_config import About
from weft.core.registry import register
from weft.norms.base import Norm, NormConfig
from weft.ops.norms import rms_norm
from weft.ops.operator import widen


class RMSNorm(Norm, HasInferenceForm):
    """Root-mean-square normalisation (Zhang & Sennrich 2019, equation 4): no mean is subtracted, nothing is added.

        y = weight x / sqrt(mean(x^2) + eps)                  ``unit_offset``: (1 + weight) in place of weight

    ``weight`` is [D]; with the unit offset it starts at 0 and weight decay pulls the scale to 1 instead of 0. The
    product with the weight, too, is computed in float32, or wider where ``x`` is wider, and rounded once to the dtype
    of ``x`` (as Gemma does); Llama's reference code rounds before it multiplies by the weight, which in bfloat16
    differs by one rounding.
    """

    def __init__(self, size: int, eps: float = 1e-6, *, weight: bool = True, unit_offset: bool = False) -> None:
        super().__init__()
        self.size, self.eps, self.unit_offset = size, eps, unit_offset
        start = torch.zeros(size) if unit_offset else torch.ones(size)
        self.weight = nn.Parameter(start) if weight else None

    def forward(self, x: Float[Tensor, "... D"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "... D"]:
        return rms_norm(x, self._scale(), self.eps)

    def declares(self) -> Declared:
        return replace(super().declares(), wide_in_training=() if self.weight is None else (self.weight,))

    def inference(self) -> Norm:
        return ScaledRMSNorm(self._scale(), self.eps)

    def _scale(self) -> Tensor | None:
        if self.weight is None:
            return None
        weight = widen(self.weight)
        return 1.0 + weight if self.unit_offset else weight


class ScaledRMSNorm(Norm):
    """The inference form of `RMSNorm`: its scale is ready, in the dtype of the product."""

    def __init__(self, scale: Tensor | None, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.scale = None if scale is None else nn.Parameter(scale.detach(), requires_grad=False)

    def forward(self, x: Float[Tensor, "... D"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "... D"]:
        return rms_norm(x, self.scale, self.eps)


@register
class RMSNormConfig(NormConfig):
    """Root-mean-square normalisation.

    Attributes:
        eps: added to the mean square, in squared units of x.
        weight: whether every feature has a learned gain.
        unit_offset: whether the gain is 1 + weight, which then starts from 0 (Gemma).
    """

    kind: ClassVar[str] = "rmsnorm"
    about = About(
        source="Zhang & Sennrich 2019 (arXiv:1910.07467), equation 4; unit offset: Gemma Team 2024",
        equation=r"y = \gamma \odot \frac{x}{\sqrt{\frac{1}{D} \sum_{i} x_i^2 + \epsilon}}",
        differs=(("layernorm", "neither subtracts the mean nor adds an offset."),))

    eps: float = Field(default=1e-6, gt=0)
    weight: bool = True
    unit_offset: bool = False

    @model_validator(mode="after")
    def _offset_needs_a_weight(self) -> RMSNormConfig:
        if self.unit_offset and not self.weight:
            raise rule("unit_offset", "true, but there is no weight to add 1 to (weight is false).",
                       "Set weight to true or unit_offset to false.")
        return self

    def build_size(self, size: int) -> RMSNorm:
        return RMSNorm(size, self.eps, weight=self.weight, unit_offset=self.unit_offset)

    @classmethod
    def examples(cls) -> list[RMSNormConfig]:
        return [cls(), cls(eps=1e-3, unit_offset=True), cls(weight=False)]

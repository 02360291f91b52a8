"""Layer normalisation."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.declarations import Declared
from weft.core.part_config import About
from weft.core.registry import register
from weft.norms.base import Norm, NormConfig
from weft.ops.norms import LAYER_NORM, LayerNormCall


class LayerNorm(Norm):
    """Layer normalisation (Ba, Kiros & Hinton 2016, section 3), each vector by its own mean and variance.

        y = weight (x - mean(x)) / sqrt(var(x) + eps) + bias         var with divisor D

    ``weight`` and ``bias`` are [D] and can be left out separately. Computed in float32, or wider where ``x`` is wider,
    and rounded once to the dtype of ``x``; implementations that stay in the model's dtype round weight and bias too.
    """

    def __init__(self, size: int, eps: float = 1e-5, *, weight: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.size, self.eps = size, eps
        self.weight = nn.Parameter(torch.ones(size)) if weight else None
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def declares(self) -> Declared:
        weight = () if self.weight is None else (self.weight,)
        return Declared(role="norms", wide_in_training=weight if self.bias is None else (*weight, self.bias))

    def forward(self, x: Float[Tensor, "... D"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "... D"]:
        own = self._parameters  # by name `torch.nn.Module` looks each of them up in a function of Python's
        if "weight" in own and "bias" in own:
            return LAYER_NORM(LayerNormCall(x, own["weight"], own["bias"], self.eps))
        return LAYER_NORM(LayerNormCall(x, self.weight, self.bias, self.eps))  # something makes one of them


@register
class LayerNormConfig(NormConfig):
    """Layer normalisation.

    Attributes:
        eps: added to the variance, in squared units of x.
        weight: whether every feature has a learned gain.
        bias: whether every feature has a learned offset.
    """

    kind: ClassVar[str] = "layernorm"
    about = About(
        source="Ba, Kiros & Hinton 2016 (arXiv:1607.06450), section 3",
        equation=(r"y = \gamma \odot \frac{x - \bar{x}}{\sqrt{\operatorname{Var}(x) + \epsilon}} + \beta \quad "
                  r"\text{over the features of a token}"),
        differs=(("rmsnorm", "also subtracts the mean, and has offsets."),
                 ("batchnorm", "statistics are those of one token, so that tokens do not depend on each other.")))

    eps: float = Field(default=1e-5, gt=0)
    weight: bool = True
    bias: bool = True

    def build_size(self, size: int) -> LayerNorm:
        return LayerNorm(size, self.eps, weight=self.weight, bias=self.bias)

    @classmethod
    def examples(cls) -> list[LayerNormConfig]:
        return [cls(), cls(eps=1e-3, bias=False), cls(weight=False, bias=False)]

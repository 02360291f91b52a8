"""The linear readout."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from jaxtyping import Bool, Float, Int64
from pydantic import Field
from torch import Tensor, nn

from weft.core.config import Dims, PartConfig
from weft.core.model import Readout
from weft.core.registry import register
from weft.ops.linear_cross_entropy import CrossEntropy, linear_cross_entropy
from weft.ops.linear_log_prob import linear_log_prob, linear_logits


class ReadoutConfig(PartConfig):
    """Base of readout configurations."""

    group: ClassVar[str] = "readout"

    def build(self, dims: Dims) -> Readout:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")


@register
class LinearReadoutConfig(ReadoutConfig):
    """logits = softcap(W h + b); ``tied``: W is the token embedding."""

    kind: ClassVar[str] = "linear"
    source: ClassVar[str] = "Press and Wolf 2017 (tied); Gemma Team 2024 (soft-cap), section 2"

    tied: bool = True
    bias: bool = False
    softcap: float | None = Field(default=None, gt=0)

    def build(self, dims: Dims) -> LinearReadout:
        tokens = dims.tokens
        if not self.tied:
            return LinearReadout(self, None, dims)
        if tokens is None or tokens.embedding_dim != dims.d_model:
            raise dims.problem("tied", f"there is no token embedding of width {dims.d_model} to share.",
                               "Set tied: false (a position scheme that is concatenated narrows the embedding).")
        return LinearReadout(self, tokens.weight, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(tied=False), cls(tied=False, bias=True, softcap=5.0)]


class LinearReadout(Readout):
    """One matrix [V,D], the token embedding's own when tied."""

    def __init__(self, config: LinearReadoutConfig, tied: Tensor | None, dims: Dims) -> None:
        super().__init__()
        self.softcap = config.softcap
        if tied is None:
            tied = nn.Parameter(torch.empty(dims.vocab_size, dims.d_model))
            nn.init.normal_(tied, std=dims.d_model ** -0.5)
        self.weight = tied
        self.bias = nn.Parameter(torch.zeros(dims.vocab_size)) if config.bias else None

    def logits(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        return linear_logits(h, self.weight, self.bias, self.softcap)

    def log_prob(self, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        return linear_log_prob(h, self.weight, self.bias, targets, self.softcap)

    def cross_entropy(self, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"], scored: Bool[Tensor, "B T"], *,
                      smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy:
        """The sums over ``scored`` tokens that training needs, see `linear_cross_entropy`."""
        return linear_cross_entropy(h, self.weight, self.bias, targets, scored, softcap=self.softcap,
                                    smoothing=smoothing, z_loss=z_loss)

"""Batch normalisation with masked statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.declarations import Declared, Trait
from weft.core.part_config import About
from weft.core.registry import register
from weft.norms.base import Norm, NormConfig
from weft.ops.operator import widen


class BatchNorm(Norm):
    """Batch normalisation (Ioffe & Szegedy 2015, algorithms 1 and 2) per feature, over the real tokens of a batch.

        training:    y = weight (x - mean) / sqrt(var + eps) + bias      mean, var (divisor n) over all n real tokens
                     running <- (1 - momentum) running + momentum batch   mean, and var with divisor n - 1
        evaluation:  the same with the running statistics

    It suits sequences badly and is here for comparison. In training the statistics of a token are those of every row
    and every *later* token of the batch, so the map is not causal, a row depends on its neighbours, and long rows weigh
    more than short ones. Evaluation uses other statistics than training did, and those of text shift with position and
    topic. In evaluation the map is a fixed affine one and every law holds.

    ``weight``, ``bias`` and the buffers ``running_mean``, ``running_var`` are [D]. Padding enters no statistic (usual
    implementations count it). Computed in float32 or wider. A batch without real tokens does not change the running
    statistics; a single real token has variance 0 (torch raises). Statistics are of this process's rows alone.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, size: int, eps: float = 1e-5, *, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.register_buffer("running_mean", torch.zeros(size))
        self.register_buffer("running_var", torch.ones(size))

    def declares(self) -> Declared:
        # The running statistics are exact: a tenth of their change in a batch is less than bfloat16 can add to them.
        return replace(super().declares(), traits=frozenset({Trait.BATCH_STATISTICS}),
                       exact=(self.running_mean, self.running_var), wide_in_training=(self.weight, self.bias))

    def forward(self, x: Float[Tensor, "... D"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "... D"]:
        wide = widen(x)
        mean, var = self._batch(wide, valid) if self.training else (widen(self.running_mean), widen(self.running_var))
        scale = widen(self.weight) * torch.rsqrt(var + self.eps)
        return ((wide - mean) * scale + widen(self.bias)).to(x.dtype)

    def _batch(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance of the real tokens, which also update the running statistics."""
        rows = x.flatten(0, -2)
        real = torch.ones_like(rows[:, :1], dtype=torch.bool)  # [rows,1]
        if valid is not None:  # [B,T], for every vector of x [B,T,...,D]
            real = valid.reshape(*valid.shape, *[1] * (x.dim() - 3), 1).expand(*x.shape[:-1], 1).reshape(-1, 1)
        count = real.sum().to(x.dtype)
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        mean = torch.where(real, rows, zero).sum(0) / count.clamp(min=1)
        var = torch.where(real, rows - mean, zero).square().sum(0) / count.clamp(min=1)
        self._remember(mean.detach(), var.detach() * count / (count - 1).clamp(min=1), count)
        return mean, var

    @torch.no_grad()
    def _remember(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        share = self.momentum * (count > 0).to(self.running_mean.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(var.to(self.running_var.dtype), share)


@register
class BatchNormConfig(NormConfig):
    """Batch normalisation over real tokens.

    Attributes:
        eps: added to the variance, in squared units of x.
        momentum: share of a batch's statistics in the running ones, for each step.
    """

    kind: ClassVar[str] = "batchnorm"
    about = About(
        source="Ioffe & Szegedy 2015 (arXiv:1502.03167), algorithms 1 and 2",
        equation=(r"y = \gamma \odot \frac{x - \mathbb{E}[x]}{\sqrt{\operatorname{Var}[x] + \epsilon}} + \beta \quad "
                  r"\text{over the tokens of a batch}"),
        differs=(("layernorm", "statistics are those of a feature over the batch, so a token depends on others in "
                               "training."),))

    eps: float = Field(default=1e-5, gt=0)
    momentum: float = Field(default=0.1, gt=0, le=1)

    def build_size(self, size: int) -> BatchNorm:
        return BatchNorm(size, self.eps, momentum=self.momentum)

    @classmethod
    def examples(cls) -> list[BatchNormConfig]:
        return [cls(), cls(eps=1e-3, momentum=0.5)]

"""`GatedNorm`: a root-mean-square norm with a gate, before it or after it, over a whole width or by groups."""

from __future__ import annotations

from typing import Literal, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.declarations import Declared
from weft.core.layer import Part
from weft.core.part_config import Settings
from weft.ops.operator import widen
from weft.ops.rms_norm import rms_norm

Order = Literal["gate_first", "norm_first"]


class GatedNormSettings(Settings):
    """The order of gate and norm, and what has a mean square of its own.

    Attributes:
        gate_order: ``gate_first``: norm(y silu(z)); ``norm_first``: norm(y) silu(z).
        per_group: whether each group of features has a mean square of its own; otherwise all have one.
        eps: added to the mean square.
    """

    gate_order: Order = "gate_first"
    per_group: bool = True
    eps: float = Field(default=1e-5, gt=0, allow_inf_nan=False)


@final
class GatedNorm(Part):
    """weight y silu(z) / sqrt(mean((y silu(z))^2) + eps), or with the gate after the norm; in float32 or better.

    Published Mamba-2 models gate first. With several groups their code has a mean for each, and old versions of
    `transformers` had one for the whole width; with one group both are the same.

    Args:
        size: features D.
        groups: into which D divides.
        settings: of the norm.
    """

    def __init__(self, size: int, groups: int, settings: GatedNormSettings) -> None:
        super().__init__()
        self.groups, self.settings = groups if settings.per_group else 1, settings
        self.weight = nn.Parameter(torch.ones(size))

    def declares(self) -> Declared:
        return Declared(role="norms", wide_in_training=(self.weight,))

    def forward(self, y: Float[Tensor, "B T D"], z: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The gated and normalised vectors, in float32 or better."""
        gate = F.silu(widen(z))
        if self.settings.gate_order == "norm_first":
            return self._normed(widen(y)) * gate
        return self._normed(widen(y) * gate)

    def _normed(self, y: Tensor) -> Tensor:
        weight = widen(self.weight)
        if self.groups == 1:
            return rms_norm(y, weight, self.settings.eps)
        return rms_norm(y.unflatten(-1, (self.groups, -1)), None, self.settings.eps).flatten(-2) * weight

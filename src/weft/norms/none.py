"""No normalisation, for studies without norms and for blocks that need none at some place."""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from weft.core.part_config import About
from weft.core.registry import register
from weft.norms.base import Norm, NormConfig


class NoNorm(Norm):
    """The identity: y = x."""

    def forward(self, x: Float[Tensor, "... D"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "... D"]:
        return x


@register
class NoNormConfig(NormConfig):
    """No normalisation."""

    kind: ClassVar[str] = "none"
    about = About(
        source="the identity", equation="y = x", differs=(("rmsnorm", "changes nothing and has no parameters."),))

    def build_size(self, size: int) -> NoNorm:
        return NoNorm()

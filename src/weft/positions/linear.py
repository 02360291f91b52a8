"""Position interpolation: positions are divided by a factor, so that longer documents fit the trained range."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field

from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.frequencies import FixedFrequencies, Frequencies, RopeScalingConfig, base_frequencies


@register
class LinearScalingConfig(RopeScalingConfig):
    """theta_i / s: position m is rotated as position m / s is without scaling.

    Attributes:
        factor: s, the extended length over the trained one.
    """

    kind: ClassVar[str] = "linear"
    about = About(
        source="Chen et al. 2023 (position interpolation), section 2.3", equation=r"\theta'_i = \frac{\theta_i}{s}",
        differs=(("ntk", "all pairs are slowed alike, the fastest too."), ("none", "positions are divided by s.")))
    factor: float = Field(gt=0, allow_inf_nan=False)

    def frequencies(self, dims: Dims, rot: int, base: float) -> Frequencies:
        return FixedFrequencies([theta / self.factor for theta in base_frequencies(rot, base)])

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(factor=4.0)]

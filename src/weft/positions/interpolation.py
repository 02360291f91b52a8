"""Scalings of rotary positions by one factor. Position interpolation divides all positions by it, so that longer
documents fit the trained range; Llama 3.1's interpolates slow pairs, leaves fast ones unchanged and blends those
between."""

from __future__ import annotations

import math
from typing import ClassVar, Self

from pydantic import Field, model_validator

from weft.core.config import rule
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.frequencies import FixedFrequencies, Frequencies, RopeScalingConfig, base_frequencies


@register
class Llama3ScalingConfig(RopeScalingConfig):
    """(1 - g) theta_i / s + g theta_i with g = (L0 / lambda_i - low) / (high - low) clamped to 0 to 1, where
    lambda_i = 2 pi / theta_i is the pair's wavelength in tokens. Cosines and sines are unscaled.

    Attributes:
        factor: s, by which pairs slower than ``low_freq_factor`` turns within L0 are slowed.
        original_length: tokens that the model was first trained for, L0.
        low_freq_factor: turns within L0 up to which a pair is fully interpolated.
        high_freq_factor: turns within L0 from which a pair is unchanged.
    """

    kind: ClassVar[str] = "llama3"
    about = About(
        source="Dubey et al. 2024, section 3.4.2, and Llama 3.1's released code",
        equation=(r"\theta'_i = (1 - g_i) \frac{\theta_i}{s} + g_i \theta_i, \qquad g_i = \operatorname{clamp}\left( "
                  r"\frac{L_0 / \lambda_i - l}{h - l},\, 0,\, 1 \right), \quad \lambda_i = \frac{2 \pi}{\theta_i}"),
        differs=(("yarn", "the ramp is linear in turns in place of the index, and cosines are not scaled."),))
    factor: float = Field(gt=0, allow_inf_nan=False)
    original_length: int = Field(gt=0)
    low_freq_factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    high_freq_factor: float = Field(default=4.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _require_order(self) -> Self:
        if self.high_freq_factor <= self.low_freq_factor:
            raise rule("high_freq_factor", f"{self.high_freq_factor} turns are not more than low_freq_factor "
                       f"{self.low_freq_factor}.", "Give a larger high_freq_factor.")
        return self

    def frequencies(self, dims: Dims, rot: int, base: float) -> Frequencies:
        return FixedFrequencies([self._scaled(theta) for theta in base_frequencies(rot, base)])

    def _scaled(self, theta: float) -> float:
        turns = self.original_length * theta / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = min(max(kept, 0.0), 1.0)
        return (1 - kept) * theta / self.factor + kept * theta

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(factor=8.0, original_length=16),
                cls(factor=8.0, original_length=16, low_freq_factor=0.5, high_freq_factor=2.0)]


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

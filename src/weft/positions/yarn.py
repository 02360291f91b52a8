"""YaRN: slow pairs are interpolated, fast ones unchanged, and attention is sharpened."""

from __future__ import annotations

import math
from typing import ClassVar, Self

from pydantic import Field, model_validator

from weft.core.config import rule
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.frequencies import FixedFrequencies, Frequencies, RopeScalingConfig, base_frequencies, pairs


@register
class YarnConfig(RopeScalingConfig):
    """(1 - g_i) theta_i / s + g_i theta_i, with cosines and sines multiplied by 0.1 ln(s) + 1.

    g falls from 1 to 0, linearly in the index i, between the pair that makes ``beta_fast`` turns within L0 and the one
    that makes ``beta_slow``, as in the authors' released code; the paper's gamma is linear in the number of turns.

    Attributes:
        factor: s, the extended length over the trained one.
        original_length: tokens that the model was first trained for, L0.
        beta_fast: turns within L0 from which a pair is unchanged.
        beta_slow: turns within L0 up to which a pair is fully interpolated.
        truncate: whether the ramp begins and ends at whole indices, rounded outwards.
        attention_factor: on cosines and sines, so scores grow by its square; None: 0.1 ln(s) + 1, or 1 where s <= 1.
        mscale: m in 0.1 m ln(s) + 1, the factor's numerator, with ``mscale_all_dim`` (DeepSeek).
        mscale_all_dim: m in its denominator.
    """

    kind: ClassVar[str] = "yarn"
    about = About(
        source="Peng et al. 2023 (YaRN), sections 3.2 and 3.4, and its released code",
        equation=(r"\theta'_i = (1 - g_i) \frac{\theta_i}{s} + g_i \theta_i, \qquad \text{cosines and sines times } "
                  r"0.1 \ln s + 1"),
        differs=(("llama3", "the ramp is linear in the index, and scores grow with s."),
                 ("ntk", "fast pairs stay exactly as they are.")))
    factor: float = Field(gt=0, allow_inf_nan=False)
    original_length: int = Field(gt=0)
    beta_fast: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    beta_slow: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    truncate: bool = True
    attention_factor: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    mscale: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    mscale_all_dim: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _require_order(self) -> Self:
        if self.beta_fast <= self.beta_slow:
            raise rule("beta_fast", f"{self.beta_fast} turns are not more than beta_slow {self.beta_slow}.",
                       "Give a larger beta_fast.")
        return self

    @model_validator(mode="after")
    def _require_one_factor(self) -> Self:
        if (self.mscale is None) != (self.mscale_all_dim is None):
            name = "mscale" if self.mscale is None else "mscale_all_dim"
            raise rule(name, "mscale and mscale_all_dim make the attention factor together, and this one is missing.",
                       "Give both or neither.")
        if self.attention_factor is not None and self.mscale is not None:
            raise rule("attention_factor", "both it and mscale set the factor on cosines and sines.",
                       "Give attention_factor, or mscale with mscale_all_dim.")
        return self

    def frequencies(self, dims: Dims, rot: int, base: float) -> Frequencies:
        theta = base_frequencies(rot, base)
        low, high = self._ramp(rot, base)
        kept = [1 - min(max((i - low) / (high - low), 0.0), 1.0) for i in range(pairs(rot))]
        return FixedFrequencies([(1 - g) * f / self.factor + g * f for g, f in zip(kept, theta, strict=True)],
                                self.amplitude())

    def amplitude(self) -> float:
        """The factor on cos and sin."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale is not None and self.mscale_all_dim is not None:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    def _temperature(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1 if self.factor > 1 else 1.0

    def _ramp(self, rot: int, base: float) -> tuple[float, float]:
        """The indices between which g falls; they may lie outside the range of pairs."""
        low, high = (rot * math.log(self.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))
                     for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        # The released code clamps to the features' indices rather than the pairs', and separates bounds that coincide.
        low, high = max(low, 0), min(high, rot - 1)
        return low, high + 0.001 if low == high else high

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(factor=4.0, original_length=16),
                cls(factor=4.0, original_length=64, beta_fast=4.0, beta_slow=0.5, truncate=False, attention_factor=1.2),
                cls(factor=40.0, original_length=64, mscale=0.7, mscale_all_dim=1.0)]

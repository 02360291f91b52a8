"""NTK-aware scaling: another base, so that slow pairs are stretched and fast ones unchanged."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import ClassVar, Self

import torch
from jaxtyping import Int64
from pydantic import Field
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.frequencies import (
    Constant,
    FixedFrequencies,
    Frequencies,
    RopeScalingConfig,
    base_frequencies,
    pairs,
)
from weft.positions.regimes import LengthDependent


@register
class NtkScalingConfig(RopeScalingConfig):
    """base' = base s^(R/(R-2)) for R turned features: the slowest pair is slowed by s, the fastest not at all.

    Attributes:
        factor: s, the extended length over the trained one.
    """

    kind: ClassVar[str] = "ntk"
    about = About(
        source="Peng et al. 2023 (YaRN), section 3.1; bloc97 2023",
        equation=r"\text{base}' = \text{base} \cdot s^{R / (R - 2)}",
        differs=(("linear", "fast pairs, which tell neighbours apart, are hardly slowed."),
                 ("dynamic", "the stretch is the same for all lengths.")))
    factor: float = Field(gt=0, allow_inf_nan=False)

    def frequencies(self, dims: Dims, rot: int, base: float) -> Frequencies:
        _require_two_pairs(dims, self.kind, rot)
        return FixedFrequencies(base_frequencies(rot, base * self.factor ** (rot / (rot - 2))))

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(factor=4.0)]


@register
class DynamicScalingConfig(RopeScalingConfig):
    """base' = base (s L / L0 - (s - 1))^(R/(R-2)) for a document of L > L0 tokens; unscaled up to L0.

    All tokens of a document of L tokens are rotated with the frequencies of L.

    Attributes:
        factor: s; with 1 the slowest pair is slowed by L / L0, so that it just stays within its trained range.
        original_length: tokens that the model was trained for, L0.
    """

    kind: ClassVar[str] = "dynamic"
    about = About(
        source="Peng et al. 2023 (YaRN), section 3.3; emozilla 2023; s as in Hugging Face's transformers",
        equation=r"\text{base}' = \text{base} \left( \frac{s L}{L_0} - (s - 1) \right)^{R / (R - 2)}",
        differs=(("ntk", "the stretch follows each document's length, and short ones are not changed."),))
    factor: float = Field(gt=0, allow_inf_nan=False)
    original_length: int = Field(gt=0)

    def frequencies(self, dims: Dims, rot: int, base: float) -> Frequencies:
        _require_two_pairs(dims, self.kind, rot)
        return DynamicFrequencies(rot, base, self.factor, self.original_length)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(factor=2.0, original_length=6)]


class DynamicFrequencies(LengthDependent, Frequencies):
    """theta_i (s L / L0 - (s - 1))^(-2i/(R-2)), with L the document's declared length, at least L0.

    Without a declared length (horizon 0) a document is unscaled. Common implementations take L from the longest row of
    the batch and keep keys that were rotated for a shorter document, so their decoding differs from a whole run.
    """

    def __init__(self, rot: int, base: float, factor: float, original_length: int) -> None:
        super().__init__()
        self.theta = Constant(base_frequencies(rot, base))
        self.exponents = Constant([-2 * i / (rot - 2) for i in range(pairs(rot))])
        self.factor, self.original_length = factor, original_length

    def declares(self) -> Declared:
        return replace(super().declares(), borders=(self.original_length,))

    def regime(self, length: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        return length.clamp(min=self.original_length)

    def at(self, ticks: Ticks, dtype: torch.dtype) -> Tensor:
        beyond = self.regime(ticks.length) - self.original_length
        growth = 1 + self.factor * beyond.to(dtype) / self.original_length
        return self.theta.at(dtype) * growth[..., None] ** self.exponents.at(dtype)

    def key(self) -> Hashable:
        return DynamicFrequencies, self.theta.key(), self.factor, self.original_length


def _require_two_pairs(dims: Dims, kind: str, rot: int) -> None:
    if pairs(rot) < 2:
        raise dims.problem("", f"'{kind}' does not change the fastest pair, and there is no other.",
                           "Rotate at least three features, or use the scaling 'linear'.")

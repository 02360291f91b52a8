"""LongRoPE: two lists of factors on the wavelengths, one for short documents and one for long ones."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from typing import ClassVar, Self

import torch
from jaxtyping import Int64
from pydantic import Field, model_validator
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.config import rule
from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.frequencies import Constant, Frequencies, RopeScalingConfig, base_frequencies, pairs
from weft.positions.regimes import LengthDependent


@register
class LongRopeConfig(RopeScalingConfig):
    """theta_i / lambda_i with one list lambda for documents of up to ``original_length`` tokens, another beyond.

    Attributes:
        short_factor: lambda for documents within the original length, one for each pair.
        long_factor: lambda for longer documents.
        original_length: tokens that the model was first trained for, L0.
        extended_length: tokens that it was extended to, s L0.
        factor: s, where it is given in place of ``extended_length``.
        attention_factor: factor on cos and sin for all lengths; None: sqrt(1 + ln s / ln L0), or 1 where s <= 1.
    """

    kind: ClassVar[str] = "longrope"
    about = About(
        source="Ding et al. 2024, sections 3.2 and 3.3; the factor as in Phi-3's released code",
        equation=(r"\theta'_i = \frac{\theta_i}{\lambda_i}, \qquad \lambda = \text{short or long, by the document's "
                  r"length}"),
        differs=(("yarn", "every pair has a searched factor of its own, in place of a formula."),))
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_length: int = Field(gt=1)
    extended_length: int | None = Field(default=None, gt=1)
    factor: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    attention_factor: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _require_positive(self) -> Self:
        for name, factors in (("short_factor", self.short_factor), ("long_factor", self.long_factor)):
            if any(not 0 < factor < math.inf for factor in factors):
                raise rule(name, f"factors divide frequencies, got {list(factors)}.", "Give positive finite numbers.")
        return self

    @model_validator(mode="after")
    def _require_one_extent(self) -> Self:
        given = (self.extended_length is not None) + (self.factor is not None)
        if given > 1:
            raise rule("factor", "both it and extended_length give the extent of the context.", "Give one of them.")
        if given == 0 and self.attention_factor is None:
            raise rule("extended_length", "the attention factor follows from how far the context was extended.",
                       "Give extended_length, factor or attention_factor.")
        return self

    def frequencies(self, dims: Dims, rot: int, base: float) -> Frequencies:
        for name, factors in (("short_factor", self.short_factor), ("long_factor", self.long_factor)):
            if len(factors) != pairs(rot):
                raise dims.problem(name, f"{len(factors)} factors for the {pairs(rot)} pairs of {rot} rotary features.",
                                   "Give one factor for each pair.")
        theta = base_frequencies(rot, base)
        return LongRopeFrequencies([[f / factor for f, factor in zip(theta, factors, strict=True)]
                                    for factors in (self.short_factor, self.long_factor)],
                                   self.original_length, self.amplitude())

    def amplitude(self) -> float:
        """The factor on cos and sin."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor is not None:
            ratio = self.factor
        else:
            assert self.extended_length is not None, "the configuration requires one of the two"
            ratio = self.extended_length / self.original_length
        return math.sqrt(1 + math.log(ratio) / math.log(self.original_length)) if ratio > 1 else 1.0

    @classmethod
    def examples(cls) -> list[Self]:
        short, long = (1.0, 1.5), (1.0, 4.0)
        return [cls(short_factor=short, long_factor=long, original_length=6, extended_length=24),
                cls(short_factor=short, long_factor=long, original_length=6, attention_factor=1.1),
                cls(short_factor=short, long_factor=long, original_length=6, factor=2.5)]


class LongRopeFrequencies(LengthDependent, Frequencies):
    """Long factors where the document's declared length exceeds the original one, chosen for each row and document.

    Without a declared length (horizon 0) a document counts as short. Common implementations choose once for the whole
    batch and switch during a generation, after which the stored keys no longer agree with the queries.
    """

    def __init__(self, theta: list[list[float]], original_length: int, amplitude: float) -> None:
        super().__init__(amplitude)
        self.theta, self.original_length = Constant(theta), original_length

    def regime(self, length: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        return (length > self.original_length).long()

    def declares(self) -> Declared:
        return replace(super().declares(), borders=(self.original_length,))

    def at(self, ticks: Ticks, dtype: torch.dtype) -> Tensor:
        short, long = self.theta.at(dtype).unbind()
        return torch.where(self.regime(ticks.length)[..., None] > 0, long, short)

    def key(self) -> Hashable:
        return LongRopeFrequencies, self.amplitude, self.theta.key(), self.original_length

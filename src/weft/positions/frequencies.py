"""Angular frequencies of rotary positions, and the base of their scalings to longer contexts.

A scaling is one small file: a `RopeScalingConfig` that gives the frequencies of R/2 pairs, in radians per token, and
the factor on cos and sin. Constant frequencies are `FixedFrequencies`; those that depend on the document's length
are subclasses of `Frequencies`.

Numbers that a configuration fixes (frequencies, slopes), kept exact for any dtype of the model.

Scalings of rotary positions by one factor. Position interpolation divides all positions by it, so that longer
documents fit the trained range; Llama 3.1's interpolates slow pairs, leaves fast ones unchanged and blends those
between.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.config import rule
from weft.core.declarations import Declared
from weft.core.layer import Part
from weft.core.part_config import About, Dims, ModuleConfig
from weft.core.registry import register


def pairs(rot: int) -> int:
    """The number of pairs of ``rot`` rotated features; an odd number is rounded up."""
    return (rot + 1) // 2


def base_frequencies(rot: int, base: float) -> list[float]:
    """theta_i = base^(-2i/rot), one for each pair from i = 0; Su et al. 2021, equation 15."""
    return [base ** (-2 * i / rot) for i in range(pairs(rot))]


class Frequencies(Part, ABC):
    """The frequencies of each token's pairs.

    Attributes:
        amplitude: factor on cos and sin of queries and of keys, so scores grow by its square.
    """

    def __init__(self, amplitude: float = 1.0) -> None:
        super().__init__()
        self.amplitude = amplitude

    @abstractmethod
    def at(self, ticks: Ticks, dtype: torch.dtype) -> Tensor:
        """[R/2], or [#B,T,R/2] where they depend on the token's document."""

    def key(self) -> Hashable:
        """A hashable key, equal for equal frequencies; layers with equal keys share the rotations of a call."""
        return self


class FixedFrequencies(Frequencies):
    """The same frequencies for every token."""

    def __init__(self, theta: list[float], amplitude: float = 1.0) -> None:
        super().__init__(amplitude)
        self.theta = Constant(theta)

    def at(self, ticks: Ticks, dtype: torch.dtype) -> Tensor:
        return self.theta.at(dtype)

    def key(self) -> Hashable:
        return FixedFrequencies, self.amplitude, self.theta.key()


class RopeScalingConfig(ModuleConfig):
    """Base of rotary scalings."""

    group: ClassVar[str] = "rope_scaling"

    def frequencies(self, dims: Dims, rot: int, base: float) -> Frequencies:
        """The frequencies for ``rot`` rotated features; ``dims`` gives the place for errors."""
        raise NotImplementedError(f"{type(self).__name__} does not implement frequencies")


@register
class NoScalingConfig(RopeScalingConfig):
    """theta_i = base^(-2i/R), unscaled."""

    kind: ClassVar[str] = "none"
    about = About(
        source="Su et al. 2021, equation 15", equation=r"\theta_i = \text{base}^{-2 i / R}",
        differs=(("linear", "frequencies are as the base says."),))

    def frequencies(self, dims: Dims, rot: int, base: float) -> Frequencies:
        return FixedFrequencies(base_frequencies(rot, base))


Numbers = Sequence[float] | Sequence[Sequence[float]]


def angle_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which angles and distances for ``x`` are computed: float32, or float64 for float64."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class Constant(Part):
    """A fixed tensor that follows the model's device and not its dtype, and is not saved with the weights.

    A buffer alone would be rounded by ``model.to(torch.bfloat16)`` and would be uninitialised after ``to_empty``;
    this one is written again from its Python numbers whenever the model is moved or cast.
    """

    numbers: Tensor

    def __init__(self, values: Numbers) -> None:
        super().__init__()
        self.values = values
        self._key = tuple(tuple(row) if isinstance(row, Sequence) else row for row in values)
        self.register_buffer("numbers", torch.tensor(values, dtype=torch.float32), persistent=False)

    def at(self, dtype: torch.dtype) -> Tensor:
        """The numbers in float32, or correctly rounded in another dtype."""
        if dtype == torch.float32:
            return self.numbers
        return torch.tensor(self.values, dtype=dtype, device=self.numbers.device)

    def key(self) -> tuple[Any, ...]:
        """A hashable key, equal for equal numbers."""
        return self._key

    def declares(self) -> Declared:
        return Declared(same_dtype=(self.numbers,))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self.numbers = torch.tensor(self.values, dtype=torch.float32, device=self.numbers.device)
        return self


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

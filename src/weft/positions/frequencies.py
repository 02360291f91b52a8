"""Angular frequencies of rotary positions, and the base of their scalings to longer contexts.

A scaling is one small file: a `RopeScalingConfig` that gives the frequencies of R/2 pairs, in radians per token, and
the factor on cos and sin. Constant frequencies are `FixedFrequencies`; those that depend on the document's length
are subclasses of `Frequencies`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import ClassVar

import torch
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.layer import Part
from weft.core.part_config import About, Dims, ModuleConfig
from weft.core.registry import register
from weft.positions.constants import Constant


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

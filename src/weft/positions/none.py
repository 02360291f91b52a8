"""No position scheme: order enters only through the causal mask or a recurrence."""

from __future__ import annotations

from typing import ClassVar

from weft.core.part_config import Dims
from weft.core.registry import register
from weft.positions.base import PositionConfig, PositionScheme


@register
class NoPositionConfig(PositionConfig):
    """No positions (NoPE)."""

    kind: ClassVar[str] = "none"
    source: ClassVar[str] = "Kazemnejad et al. 2023, section 2"
    equation: ClassVar[str] = r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{E}}"
    differs: ClassVar[tuple[tuple[str, str], ...]] = (
        ("rope", "order is known through the mask alone."),)

    def in_words(self, d_model: int = 0) -> str:
        return ""

    def build(self, dims: Dims) -> NoPosition:
        return NoPosition()


class NoPosition(PositionScheme):
    """The identity at all four points."""

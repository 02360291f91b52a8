"""No position scheme: order enters only through the causal mask or a recurrence."""

from __future__ import annotations

from typing import ClassVar

from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.base import PositionConfig, PositionScheme


@register
class NoPositionConfig(PositionConfig):
    """No positions (NoPE)."""

    kind: ClassVar[str] = "none"
    about = About(
        source="Kazemnejad et al. 2023, section 2", equation=r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{E}}",
        differs=(("rope", "order is known through the mask alone."),))

    def in_words(self, d_model: int = 0) -> str:
        return ""

    def build(self, dims: Dims) -> NoPosition:
        return NoPosition()


class NoPosition(PositionScheme):
    """The identity at all four points."""

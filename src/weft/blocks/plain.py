"""Blocks without norms."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from weft.blocks.base import Block, BlockConfig
from weft.blocks.wiring import Wiring, in_turn
from weft.core.layer import Layer, LayerState
from weft.core.output import Output
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Span


@register
class PlainConfig(BlockConfig):
    """x + f(x) for every layer f, or f(x) with ``residual: false``: stacked recurrent networks."""

    kind: ClassVar[str] = "plain"
    about = About(
        source="Zaremba et al. 2014, section 3 (stacked LSTM with dropout between layers)",
        equation=r"y = x + f(x) \quad \text{for every layer } f",
        differs=(("pre", "has no norm; residual: false also leaves out the sum."),))

    def build(self, dims: Dims) -> Plain:
        return Plain(self, dims)


class Plain(Block):
    """x + f(x) for every layer f, or f(x) with ``residual: false``: stacked recurrent networks."""

    norms_per_layer = 0

    def branch(self, index: int, layer: Layer, x: Tensor, state: LayerState | None,
               span: Span) -> tuple[Output[LayerState], Tensor]:
        out = layer(x, state, span)
        return out, self.add(x, out.y)

    def wiring(self) -> Wiring:
        return in_turn(len(self.layers), self.config.residual)

"""Pre-norm blocks."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from weft.blocks.base import Block, BlockConfig
from weft.core.config import Dims
from weft.core.layer import Layer, LayerState
from weft.core.output import Output
from weft.core.registry import register
from weft.core.span import Span


@register
class PreNormConfig(BlockConfig):
    """x + f(norm(x)) for every layer f; give the model a `norm`, which follows the last block."""

    kind: ClassVar[str] = "pre"
    source: ClassVar[str] = "Xiong et al. 2020, figure 1b"

    def build(self, dims: Dims) -> PreNorm:
        return PreNorm(self, dims)


class PreNorm(Block):
    """x + f(norm(x))."""

    def branch(self, index: int, layer: Layer, x: Tensor, state: LayerState | None,
               span: Span) -> tuple[Output[LayerState], Tensor]:
        out = layer(self.normed(index, x, span), state, span)
        return out, self.add(x, out.y)

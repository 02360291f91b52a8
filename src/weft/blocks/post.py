"""Post-norm blocks."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from weft.blocks.base import Block, BlockConfig
from weft.core.layer import Layer, LayerState
from weft.core.output import Output
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.core.span import Span


@register
class PostNormConfig(BlockConfig):
    """norm(x + f(x)) for every layer f; no norm is needed after the last block."""

    kind: ClassVar[str] = "post"
    source: ClassVar[str] = "Vaswani et al. 2017, section 3.1"

    def build(self, dims: Dims) -> PostNorm:
        return PostNorm(self, dims)


class PostNorm(Block):
    """norm(x + f(x)) for every layer f; no norm is needed after the last block."""

    def branch(self, index: int, layer: Layer, x: Tensor, state: LayerState | None,
               span: Span) -> tuple[Output[LayerState], Tensor]:
        out = layer(x, state, span)
        return out, self.normed(index, self.add(x, out.y), span)

"""Sandwich-norm blocks."""

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
class SandwichNormConfig(BlockConfig):
    """x + norm(f(norm(x))) for every layer f: a norm before and after."""

    kind: ClassVar[str] = "sandwich"
    about = About(
        source="Ding et al. 2021 (CogView), section 2.3",
        equation=r"y = x + \operatorname{norm}_2(f(\operatorname{norm}_1(x))) \quad \text{for every layer } f",
        differs=(("pre", "a second norm bounds what each layer adds."), ("post", "the sum itself is not normalised.")))

    def build(self, dims: Dims) -> SandwichNorm:
        return SandwichNorm(self, dims)


class SandwichNorm(Block):
    """x + norm(f(norm(x))) for every layer f: a norm before and after."""

    norms_per_layer = 2

    def branch(self, index: int, layer: Layer, x: Tensor, state: LayerState | None,
               span: Span) -> tuple[Output[LayerState], Tensor]:
        out = layer(self.normed(2 * index, x, span), state, span)
        return out, self.add(x, self.normed(2 * index + 1, out.y, span))

    def wiring(self) -> Wiring:
        return in_turn(len(self.layers), self.config.residual, before=True, after=True)

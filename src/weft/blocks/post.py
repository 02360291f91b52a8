"""Post-norm blocks."""

from __future__ import annotations

from typing import ClassVar, Self

from torch import Tensor

from weft.blocks.base import Block, BlockConfig
from weft.blocks.wiring import Branch, Skip, Step, Wiring, in_turn
from weft.core.layer import Layer, LayerState
from weft.core.output import Output
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Span


@register
class PostNormConfig(BlockConfig):
    """norm(x + f(x)) for every layer f; no norm is needed after the last block. ``inside``: x + norm(f(x)), the norm on
    the branch alone; set the model's `norm` too, which then follows the last block.

    Attributes:
        inside: whether the norm is on the branch alone, x + norm(f(x)).
    """

    kind: ClassVar[str] = "post"
    about = About(
        source="Vaswani et al. 2017, section 3.1; Liu et al. 2022 (Swin V2), section 3.2 (inside)",
        equation=r"y = \operatorname{norm}(x + f(x)) \quad \text{for every layer } f",
        differs=(("pre", "the norm follows the sum, so that the residual path is normalised too."),
                 ("sandwich", "no norm precedes the layer.")))

    inside: bool = False

    def build(self, dims: Dims) -> PostNorm:
        return PostNorm(self, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        layers = [{"kind": "attention", "n_heads": 2}, {"kind": "mlp", "d_ff": 12}]
        return [*super().examples(), cls.model_validate({"layers": layers, "inside": True, "norm": "rmsnorm"})]


class PostNorm(Block):
    """norm(x + f(x)), or x + norm(f(x))."""

    def __init__(self, config: PostNormConfig, dims: Dims) -> None:
        super().__init__(config, dims)
        self.inside = config.inside

    def branch(self, index: int, layer: Layer, x: Tensor, state: LayerState | None,
               span: Span) -> tuple[Output[LayerState], Tensor]:
        out = layer(x, state, span)
        if self.inside:
            return out, self.add(x, self.normed(index, out.y, span))
        return out, self.normed(index, self.add(x, out.y), span)

    def wiring(self) -> Wiring:
        if self.inside:
            return in_turn(len(self.layers), self.config.residual, after=True)
        skip: Skip = "stream" if self.config.residual else "nothing"
        return tuple(Step((Branch(index),), skip=skip, after=index) for index in range(len(self.layers)))

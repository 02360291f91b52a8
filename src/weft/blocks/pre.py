"""Pre-norm blocks."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from torch import Tensor

from weft.blocks.base import Block, BlockConfig
from weft.blocks.wiring import Branch, Skip, Step, Wiring, in_turn
from weft.core.layer import Layer, LayerState
from weft.core.output import Output
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Span
from weft.norms.base import NoNorm


@register
class PreNormConfig(BlockConfig):
    """x + f(norm(x)) for every layer f. Set the model's `norm` too, which follows the last block. ``skip_normed``:
    norm(x) + f(norm(x)) (BLOOM's apply_residual_connection_post_layernorm). ``first_norm``: whether the block's first
    layer has a norm; the first block needs none where the embeddings are normalised (ModernBERT).

    Attributes:
        skip_normed: whether the residual path takes the norm's result, norm(x) + f(norm(x)).
        first_norm: whether the block's first layer has a norm.
    """

    kind: ClassVar[str] = "pre"
    about = About(
        source=("Xiong et al. 2020, figure 1b; Shoeybi et al. 2019 (Megatron-LM; skip_normed); Warner et al. 2024 "
                "(arXiv:2412.13663), section 2.1.1 (first_norm)"),
        equation=r"y = x + f(\operatorname{norm}(x)) \quad \text{for every layer } f",
        differs=(("post", "the residual path is never normalised, so the last block needs a norm behind it."),
                 ("parallel", "each layer reads the result of the one before it.")))


    skip_normed: bool = False
    first_norm: bool = True

    def build(self, dims: Dims) -> PreNorm:
        return PreNorm(self, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        layers = [{"kind": "attention", "n_heads": 2}, {"kind": "mlp", "d_ff": 12}]
        return [*super().examples(), cls.model_validate({"layers": layers, "skip_normed": True}),
                cls.model_validate({"layers": layers, "first_norm": False})]


class PreNorm(Block):
    """x + f(norm(x)), or norm(x) + f(norm(x))."""

    def __init__(self, config: PreNormConfig, dims: Dims) -> None:
        super().__init__(config, dims)
        self.skip_normed = config.skip_normed
        if not config.first_norm:
            self.norms[0] = NoNorm()

    def branch(self, index: int, layer: Layer, x: Tensor, state: LayerState | None,
               span: Span) -> tuple[Output[LayerState], Tensor]:
        norms: Any = self._modules["norms"]  # `normed` and the usual case of `add` written out, for a step of one token
        normed: Tensor = norms._modules[str(index)](x, span.ticks.valid)
        out = layer(normed, state, span)
        stream, dropout = normed if self.skip_normed else x, self._modules["dropout"]
        if self.plain_sum and dropout is not None and not dropout.training:
            return out, stream + out.y
        return out, self.add(stream, out.y)

    def wiring(self) -> Wiring:
        if not self.skip_normed:
            return in_turn(len(self.layers), self.config.residual, before=True)
        skip: Skip = "entering" if self.config.residual else "nothing"
        return tuple(Step((Branch(index),), entering=index, skip=skip) for index in range(len(self.layers)))

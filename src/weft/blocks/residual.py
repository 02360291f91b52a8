"""Pre-norm blocks. Blocks without norms. Sandwich-norm blocks. Post-norm blocks."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from torch import Tensor

from weft.blocks.base import Block, BlockConfig, Branch, Skip, Step, Wiring, in_turn
from weft.core.layer import Layer, LayerState
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Output, Span
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

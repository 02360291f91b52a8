"""`sum`: several mixers in the place of one, which read the same vectors and whose results are added."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator
from torch import Tensor

from weft.blocks.base import Composite, build_all
from weft.core.config import PartField, rule
from weft.core.declarations import Declared
from weft.core.layer import LayerState
from weft.core.part_config import About, Dims, ModuleConfig
from weft.core.registry import register
from weft.core.span import Output, Span
from weft.mixers.base import MixerConfig


@register
class SumConfig(MixerConfig):
    """Mixers side by side behind one norm, such as attention and a state space.

    Attributes:
        layers: the mixers, in the order in which their results are added.
        factors: on the result of each; None: all 1.
    """

    kind: ClassVar[str] = "sum"
    about = About(
        also_called=("side_by_side", "parallel_mixers"),
        source="Zuo et al. 2025 (Falcon-H1, arXiv:2507.22448), section 2.1", equation=r"y = \sum_{i} c_i f_i(x)",
        differs=(("parallel", "adds mixers within one layer, in place of layers within a block."),),
        state_size="the states of its layers")

    layers: list[Annotated[ModuleConfig, PartField("mixer")]]
    factors: list[Annotated[float, Field(allow_inf_nan=False)]] | None = None

    def in_words(self, d_model: int = 0) -> str:
        return f"sum of ({') and ('.join(layer.in_words(d_model) for layer in self.layers)})"

    @model_validator(mode="after")
    def _one_factor_each(self) -> Self:
        if not self.layers:
            raise rule("layers", "a sum without layers is nothing.", "List at least one mixer.")
        if self.factors is not None and len(self.factors) != len(self.layers):
            raise rule("factors", f"{len(self.factors)} factors for {len(self.layers)} layers.",
                       "Give one for each layer, or leave them out.")
        return self

    def build(self, dims: Dims) -> Sum:
        return Sum(self, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        attention = {"kind": "attention", "n_heads": 2}
        space = {"kind": "mamba2", "n_heads": 2, "d_head": 2, "d_state": 2}
        return [cls.model_validate({"layers": [space, attention], "factors": [0.5, -1.5]})]


class Sum(Composite):
    """y = sum over i of factor_i f_i(x), all of one x [B,T,D]. State: those of its layers."""

    def __init__(self, config: SumConfig, dims: Dims) -> None:
        super().__init__(build_all([(("layers", index), part) for index, part in enumerate(config.layers)], dims))
        self.config = config
        self.factors = [1.0] * len(config.layers) if config.factors is None else list(config.factors)

    def declares(self) -> Declared:
        return replace(super().declares(), role="sums of mixers")

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        outs: list[Output[LayerState]] = []
        total: Tensor | None = None
        for factor, (layer, inner) in zip(self.factors, self.with_states(state), strict=True):
            out = layer(x, inner, span)
            span = span.passing(out.given) if out.given else span
            outs.append(out)
            y = out.y if factor == 1.0 else out.y * factor
            total = y if total is None else total + y
        assert total is not None, "there is at least one layer"
        return self.together(state, outs, total, span)

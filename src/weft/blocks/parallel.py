"""Parallel blocks: mixer and feed-forward read the same stream, and their outputs are added to it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from weft.blocks.base import Block, BlockConfig, Branch, Step, Wiring
from weft.core.layer import Layer, LayerState
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Output, Span


@register
class ParallelConfig(BlockConfig):
    """x + f(norm(x)) + g(norm(x)); with ``shared_norm: false`` every layer has its own norm (GPT-NeoX).

    Attributes:
        shared_norm: whether all layers read the result of one norm; otherwise each has its own.
    """

    kind: ClassVar[str] = "parallel"
    about = About(
        source="Wang and Komatsuzaki 2021 (GPT-J); Chowdhery et al. 2022 (PaLM), section 2",
        equation=r"y = x + \sum_{f} f(\operatorname{norm}(x))",
        differs=(("pre", "its layers read the block's input side by side, where those of pre read one another's "
                         "results."),))

    shared_norm: bool = True

    def build(self, dims: Dims) -> Parallel:
        return Parallel(self, dims)


class Parallel(Block):
    """x + sum of f(norm(x)): every layer reads the input of the block."""

    def __init__(self, config: ParallelConfig, dims: Dims) -> None:
        super().__init__(config, dims)
        self.shared = config.shared_norm
        if self.shared:
            del self.norms[1:]

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        entering = self.normed(0, x, span) if self.shared else x
        outs, stream = [], x if self.config.residual else torch.zeros_like(x)
        for index, (layer, inner) in enumerate(self.with_states(state)):
            out, y = self.branch(index, layer, entering, inner, span)
            span = span.passing(out.given) if out.given else span
            outs.append(out)
            stream = stream + self.branched(y)
        return self.together(state, outs, stream, span)

    def branch(self, index: int, layer: Layer, x: Tensor, state: LayerState | None,
               span: Span) -> tuple[Output[LayerState], Tensor]:
        out = layer(x if self.shared else self.normed(index, x, span), state, span)
        return out, out.y

    def wiring(self) -> Wiring:
        branches = tuple(Branch(index, None if self.shared else index) for index in range(len(self.layers)))
        return (Step(branches, entering=0 if self.shared else None,
                     skip="stream" if self.config.residual else "nothing"),)

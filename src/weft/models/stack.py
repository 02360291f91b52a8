"""A stack of blocks: itself a layer."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import torch
from pydantic import AfterValidator
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from weft.blocks.base import Composite, build_all
from weft.core.config import PartField, rule
from weft.core.declarations import Kept, require_given
from weft.core.layer import LayerState
from weft.core.part_config import MOST_BLOCKS, Dims, ModuleConfig, count_blocks, expand
from weft.core.span import Output, Span
from weft.ops.operator import LEAST, dropping_cheap


def _require_few(blocks: list[ModuleConfig]) -> list[ModuleConfig]:
    count = count_blocks(blocks)
    if count > MOST_BLOCKS:
        raise rule("", f"{count:,} blocks, and a model has at most {MOST_BLOCKS:,}.", "Give fewer, wider ones.")
    return blocks


Blocks: TypeAlias = Annotated[list[Annotated[ModuleConfig, PartField("block", repeats=True)]],
                              AfterValidator(_require_few)]
"""A list of blocks, in which ``{repeat: 6, of: [...]}`` repeats some."""


class Stack(Composite):
    """Blocks in sequence."""

    # Under the compiler "costly" has no effect, because it chooses itself what to recompute. Blocks that are run again
    # for "inputs" draw the same random numbers.
    kept_activations: Kept = "everything"

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        keep = self.kept_activations if torch.is_grad_enabled() else "everything"
        if keep == "costly" and x.numel() >= LEAST and not torch.compiler.is_compiling():
            with dropping_cheap():
                return self._run(x, state, span, again=False)
        return self._run(x, state, span, again=keep == "inputs")

    def _run(self, x: Tensor, state: LayerState | None, span: Span, *, again: bool) -> Output[LayerState]:
        """``again``: blocks are run again for the backward pass."""
        outs: list[Output[LayerState]] = []
        for block, inner in self.with_states(state):
            out: Output[LayerState]
            if not again:
                out = block(x, inner, span)
            elif span.pieces is None:
                out = checkpoint(block, x, inner, span, use_reentrant=False)
            else:  # named where it is called, as the compiler demands
                out = checkpoint(block, x, inner, span, use_reentrant=False, context_fn=span.pieces.keeping)
            span = span.passing(out.given) if out.given else span
            outs.append(out)
            x = out.y
        return self.together(state, outs, x, span)


def build_stack(blocks: list[ModuleConfig], dims: Dims) -> Stack:
    """Build a stack. The dimensions of each block include its index and the number of blocks. Raises `ConfigError`: the
    problems of all blocks: parts that cannot be built, channels that no earlier layer gives."""
    parts = [(("blocks", *place), part) for place, part in expand(blocks)]
    stack = Stack(build_all(parts, dims, numbered=True))
    require_given(stack.ends([dims.at(*place).path for place, _ in parts]))
    return stack

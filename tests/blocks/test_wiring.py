"""What a block says of its wiring is what it computes: the graph, carried out by an interpreter of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from weft.blocks.base import Block, Branch, Step
from weft.core.part_config import Dims
from weft.core.registry import REGISTRY
from weft.core.span import WHOLE
from weft.laws.discovery import WIDTH

BLOCKS = [(part.kind, index) for part in REGISTRY.parts() if part.group == "block"
          for index in range(len(part.examples()))]


def carried_out(block: Block, x: Tensor) -> Tensor:
    """The stream after a block, from its wiring, its norms and its layers alone."""
    wiring = block.wiring()
    assert wiring is not None
    for step in wiring:
        read = x if step.entering is None else block.norms[step.entering](x)
        total = {"stream": x, "entering": read, "nothing": torch.zeros_like(x)}[step.skip]
        for branch in step.branches:
            y = block.layers[branch.layer](read if branch.before is None else block.norms[branch.before](read)).y
            y = y if branch.after is None else block.norms[branch.after](y)
            total = total + block.config.branch_scale * y
        x = total if step.after is None else block.norms[step.after](total)
    return x


def built(kind: str, index: int, **changes: Any) -> Block:
    torch.manual_seed(0)
    config = REGISTRY.get(("block",), kind).examples()[index].model_copy(update=changes)
    torch.set_default_dtype(torch.float64)
    try:
        block = config.build(Dims(WIDTH, 11, 32))
    finally:
        torch.set_default_dtype(torch.float32)
    assert isinstance(block, Block)
    with torch.no_grad():
        for parameter in block.parameters():  # norms that change what passes them, each in another way
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return block.eval()


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize(("kind", "index"), BLOCKS)
def test_the_wiring_computes_what_the_block_computes(kind: str, index: int, residual: bool) -> None:
    block = built(kind, index, residual=residual, branch_scale=0.7)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        # Sums of three terms in another order: a few roundings of float64.
        torch.testing.assert_close(carried_out(block, x), block(x, None, WHOLE).y, rtol=1e-12, atol=1e-12)


def test_the_wirings_of_the_papers() -> None:
    assert built("pre", 0).wiring() == (Step((Branch(0, before=0),)), Step((Branch(1, before=1),)))
    assert built("post", 0).wiring() == (Step((Branch(0),), after=0), Step((Branch(1),), after=1))
    assert built("sandwich", 0).wiring() == (Step((Branch(0, 0, 1),)), Step((Branch(1, 2, 3),)))
    assert built("parallel", 0).wiring() == (Step((Branch(0), Branch(1)), entering=0),)

"""Schemes that act on scores, by blocks of queries: equal to all pairs, and never of the size of all pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from positions.scored import attention, vectors

SCHEMES: dict[str, dict[str, Any]] = {
    "t5": {"kind": "t5", "max_distance": 60},
    "shaw": {"kind": "shaw", "max_distance": 9, "on_values": False},
    "tupe": {"kind": "tupe", "first_token": "untied", "relative": "t5"},
    "deberta": {"kind": "deberta", "table": {"kind": "position_table", "rows": 16}, "max_distance": 60},
    "deberta, content": {"kind": "deberta", "table": {"kind": "position_table", "rows": 16}, "projections": "content"},
    "transformer_xl": {"kind": "transformer_xl"},
    "transformer_xl, clamped": {"kind": "transformer_xl", "max_distance": 9},
}


class Largest(TorchDispatchMode):
    """The most numbers in a tensor that an operator made."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, Tensor):  # of a broadcast only what lies in memory
                real = [size for size, stride in zip(each.shape, each.stride(), strict=True) if stride != 0]
                self.size = max(self.size, int(torch.tensor([1, *real]).prod()) if real else 1)
        return made


@pytest.mark.parametrize("name", SCHEMES)
def test_blocks_are_all_pairs_in_values_and_gradients(name: str) -> None:
    """Past the border of a block, with a document that begins inside another block."""
    x, found = vectors(300), []
    for backend in ("banded", "reference"):
        layer = attention(SCHEMES[name], mask="causal & window(40)", backend=backend)
        y = layer(x).y
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
    for one, other in zip(*found, strict=True):
        assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", SCHEMES)
def test_under_a_window_nothing_is_made_for_all_pairs(name: str) -> None:
    steps = 1600
    layer, x = attention(SCHEMES[name], mask="causal & window(5)"), vectors(steps)
    with Largest() as largest:
        layer(x).y.sum().backward()
    assert largest.size < 4 * steps * 300 < steps * steps  # 4 heads; a block has 128 rows and 132 columns

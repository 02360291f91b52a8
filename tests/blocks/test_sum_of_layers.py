"""A sum of mixers: what it computes, what it counts, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.blocks.sum_of_layers import SumConfig
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.part_config import Dims

ATTENTION, SPACE = {"kind": "attention", "n_heads": 2}, {"kind": "mamba2", "n_heads": 2, "d_head": 3, "d_state": 2}


def test_results_are_added_times_their_factors() -> None:
    torch.manual_seed(0)
    both = parse(SumConfig, {"layers": [ATTENTION, SPACE], "factors": [0.5, -2.0]}).build(Dims(8)).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    attention, space = both.layers
    torch.testing.assert_close(both(x).y, 0.5 * attention(x).y - 2.0 * space(x).y)
    both.factors = [1.0, 1.0]
    plain = parse(SumConfig, {"layers": [ATTENTION, SPACE]}).build(Dims(8)).double()
    plain.load_state_dict(both.state_dict())
    torch.testing.assert_close(both(x).y, plain(x).y)


@pytest.mark.parametrize(("given", "message"), [
    ({"layers": []}, r"layers: a sum without layers is nothing\. List at least one mixer"),
    ({"layers": [ATTENTION], "factors": [1.0, 2.0]}, r"factors: 2 factors for 1 layers\. Give one for each layer"),
    ({"layers": [{"kind": "mlp"}]}, r"layers"),
])
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(SumConfig, given).build(Dims(8))

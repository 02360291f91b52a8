"""A gated unit with constant factors, against its formula; and that no other form of it is taken."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from weft.core.config import parse
from weft.core.part_config import Dims
from weft.feedforward.glu import ScaledGLUConfig
from weft.linear.inference import inference_form


def test_it_is_the_formula() -> None:
    torch.manual_seed(0)
    unit = parse(ScaledGLUConfig, {"d_ff": 6, "bias": True, "gate_factor": 0.3, "factor": -2.5}).build(Dims(4)).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    gate, up, down = unit.gate, unit.up, unit.down
    hidden = F.silu(0.3 * (x @ gate.weight.T + gate.bias)) * (x @ up.weight.T + up.bias)
    expected = -2.5 * (hidden @ down.weight.T + down.bias)
    torch.testing.assert_close(unit(x).y, expected)
    torch.testing.assert_close(inference_form(unit)(x).y, expected)


def test_the_width_is_that_of_gated_units() -> None:
    assert ScaledGLUConfig().build(Dims(12)).gate.out_features == 32

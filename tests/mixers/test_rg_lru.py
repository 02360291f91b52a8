"""Griffin's recurrent block against a naive loop from the paper's formulas: values and gradients, and its beginning."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from by_hand import require_layer
from oracles import rg_lru as oracle
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.mixers.rg_lru import RGLRU, RGLRUConfig

D, T = 5, 11
BEGINS = [False, False, False, True, False, False, False, True, True, False, False]


def layer(**values: object) -> RGLRU:
    torch.manual_seed(0)
    return parse(RGLRUConfig, {"d_recurrence": 6, "n_heads": 2, "d_conv": 3, **values}).build(Dims(D))


@pytest.mark.parametrize("begins", [[False] * T, BEGINS], ids=["one document", "documents"])
def test_it_matches_the_oracle(begins: list[bool]) -> None:
    part = layer().double()
    parameters = [part.branches.weight, part.branches.bias, part.convolution.weight, part.convolution.bias,
                  part.recurrence_gate.weight, part.recurrence_gate.bias, part.input_gate.weight, part.input_gate.bias,
                  part.rate, part.mix.weight, part.mix.bias]

    def reference(x: np.ndarray, *given: np.ndarray) -> np.ndarray:
        branches, biases, taps, tap_bias, *gates, rate, out, out_bias = given
        return oracle.block(x, branches, biases, taps[:, 0], tap_bias, gates, rate, out, out_bias, begins)

    require_layer(part, reference, parameters, begins if any(begins) else None, steps=T, width=D)


def test_decays_begin_between_nine_tenths_and_almost_one() -> None:
    """a = exp(-softplus(rate)), and a^2 is uniform: its mean over many features is that of the two squares."""
    a = torch.exp(-torch.nn.functional.softplus(layer(d_recurrence=40_000, n_heads=400).rate.detach()))
    assert 0.9 <= a.min() < 0.901 and 0.998 < a.max() <= 0.999
    assert float(a.square().mean()) == pytest.approx((0.9 ** 2 + 0.999 ** 2) / 2, abs=1e-3)


def test_where_nothing_decays_gradients_are_finite() -> None:
    """A rate so small that the decay is 1 to the last bit lets nothing in, and its slope would be infinite."""
    part = layer()
    torch.nn.init.constant_(part.rate, -200.0)
    x = torch.randn(1, T, D, requires_grad=True)
    part(x, None, Span()).y.sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()
    assert part.rate.grad is not None and part.rate.grad.isfinite().all()


def test_a_width_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"n_heads: 7 features do not divide into 2 blocks\. Give a number of heads"):
        layer(d_recurrence=7)

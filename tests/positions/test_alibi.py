"""ALiBi against the oracle: slopes, bias, causal mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import alibi as oracle
from weft.core.clock import Clock, Keys, Ticks
from weft.core.config import parse
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.positions.alibi import Alibi, AlibiConfig, mpt_slopes, press_slopes

DIMS = Dims(d_model=8, path="mixer.position")


def build(n_heads: int = 4, **fields: Any) -> Alibi:
    return parse(AlibiConfig, fields).build_for_heads(DIMS, n_heads, 4)


def ticks_of(x: Tensor, clock: Clock | None = None, **facts: Any) -> Ticks:
    return Span(**facts).resolve(clock, x).ticks


@pytest.mark.parametrize("n_heads", [1, 2, 3, 4, 6, 7, 8, 12, 16, 20, 71])
def test_slopes_equal_both_published_rules(n_heads: int) -> None:
    np.testing.assert_allclose(press_slopes(n_heads), oracle.slopes_press(n_heads), rtol=1e-15)
    np.testing.assert_allclose(mpt_slopes(n_heads), oracle.slopes_mpt(n_heads), rtol=1e-15)
    np.testing.assert_allclose(mpt_slopes(n_heads, 4.0), oracle.slopes_mpt(n_heads, 4.0), rtol=1e-15)


def test_the_rules_differ_where_heads_are_no_power_of_two() -> None:
    assert press_slopes(6) == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    assert mpt_slopes(6) == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    assert press_slopes(5) == [0.25, 0.0625, 0.015625, 0.00390625, 0.5]
    assert press_slopes(3) != mpt_slopes(3, 4.0)
    assert press_slopes(2, 4.0) == [0.25, 0.0625]


@pytest.mark.parametrize("slopes", ["press", "mpt"])
def test_bias_equals_the_oracle_for_every_row(slopes: str) -> None:
    q, k = torch.zeros(2, 3, 5, 4, dtype=torch.float64), torch.zeros(2, 7, 5, 4, dtype=torch.float64)
    clock = Clock.start(2).replace(seen=torch.tensor([4, 9]), begin=torch.tensor([0, 2]))
    ticks = ticks_of(q, clock)
    positions = torch.stack([torch.arange(7), torch.arange(3, 10)])
    bias = build(5, slopes=slopes).bias(q, k, ticks, Keys(positions, positions))
    rule = {"press": oracle.slopes_press, "mpt": oracle.slopes_mpt}[slopes](5)
    for row, first in ((0, 4), (1, 7)):
        wanted = oracle.bias(rule, range(first, first + 3), positions[row].tolist())
        np.testing.assert_allclose(bias[row].numpy(), wanted, rtol=1e-14)


def test_with_a_causal_mask_it_is_the_paper_s_additive_mask() -> None:
    q = torch.zeros(1, 6, 4, 4, dtype=torch.float64)
    ticks = ticks_of(q)
    bias = build(4).bias(q, q, ticks, Keys.of(ticks))
    causal = bias.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -torch.inf)
    np.testing.assert_allclose(causal[0].numpy(), oracle.causal_mask(oracle.slopes_press(4), range(6), range(6)))
    assert torch.equal(bias, bias.transpose(-1, -2))
    assert bias.shape[0] == 1  # all rows agree, so none is repeated


def test_low_precision_models_get_exact_distances_rounded_once() -> None:
    """4099 is no bf16 number: positions rounded before the subtraction would give distance 0 or 32."""
    q = torch.zeros(1, 1, 4, 4, dtype=torch.bfloat16)
    ticks = ticks_of(q, Clock.start(1).replace(seen=torch.tensor([4099])))
    keys = torch.tensor([[4096, 4098, 4099]])
    bias = build(4).to(torch.bfloat16).bias(q, q, ticks, Keys(keys, keys))
    assert bias.dtype == torch.bfloat16
    assert bias[0, 0, 0].tolist() == [-0.75, -0.25, 0.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_falcon_s_rounding_and_scale_equal_the_oracle(dtype: torch.dtype) -> None:
    """12 heads: slopes that bfloat16 lacks; positions beyond 256, which it merges."""
    q = torch.zeros(1, 3, 12, 4, dtype=dtype)
    ticks = ticks_of(q, Clock.start(1).replace(seen=torch.tensor([298])))
    keys = torch.tensor([[0, 1, 3, 100, 255, 257, 299, 300]])
    bias = build(12, scaled=True, rounding="bfloat16").bias(q, q, ticks, Keys(keys, keys))
    wanted = oracle.falcon_bias(12, 4, range(298, 301), keys[0].tolist())
    assert bias.dtype == dtype
    np.testing.assert_array_equal(bias[0].numpy(), wanted)


def test_each_option_stands_alone() -> None:
    q = torch.zeros(1, 4, 4, 4)
    ticks = ticks_of(q)
    plain, scaled = (build(4, scaled=scaled).bias(q, q, ticks, Keys.of(ticks)) for scaled in (False, True))
    assert torch.equal(scaled, plain / 2)
    rounded = build(4, rounding="bfloat16").bias(q, q, ticks, Keys.of(ticks))
    assert torch.equal(rounded, plain)  # these slopes and positions are bfloat16 numbers


def test_it_has_no_parameter_and_saves_nothing() -> None:
    assert list(build().parameters()) == []
    assert build().state_dict() == {}


def test_examples_build_with_both_rules() -> None:
    assert {example.slopes for example in AlibiConfig.examples()} == {"press", "mpt"}
    assert [example.build_for_heads(DIMS, 2, 4).minus_slopes.values for example in AlibiConfig.examples()] == [
        [-(2.0**-4), -(2.0**-8)], [-(2.0**-2), -(2.0**-4)], [-(2.0**-4), -(2.0**-8)]]


def test_n_dimensional_coordinates_are_refused() -> None:
    q = torch.zeros(1, 3, 4, 4)
    ticks = ticks_of(q, coordinates=torch.zeros(1, 3, 2))
    with pytest.raises(UnsupportedError, match=r"span.coordinates: alibi takes one coordinate per token, got 2. Give"):
        build().bias(q, q, ticks, Keys.of(ticks))


def test_outside_attention_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mixer.position: 'alibi' acts on scores, so it has no place outside "
                                          r"attention. Put it in the attention's `position`."):
        AlibiConfig().build(DIMS)

"""Linear maps laid out for decoding: equal in every layout, chosen by what was measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from decoding.small_models import MLP, ROPE, decoder
from weft.decoding import for_decoding, generate
from weft.decoding.layout import LaidLinear, Layout, fastest


@pytest.mark.parametrize("layout", ["rows", "columns", "packed"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_every_layout_is_the_same_map_for_any_number_of_tokens(layout: Layout, bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(24, 10, bias=bias).to(dtype)
    laid = LaidLinear(linear, layout, rows=2)
    for shape in ((2, 1, 24), (1, 1, 24), (2, 3, 24)):
        x = torch.randn(shape, dtype=dtype)
        bound = 1e-5 if dtype is torch.float32 else 2e-2  # one rounding to eight bits, of numbers near 1
        assert_close(laid(x), linear(x), rtol=bound, atol=bound)
        assert laid(x).dtype is dtype
    assert torch.equal(laid.weight, linear.weight)


def test_columns_lie_side_by_side_and_rows_share_their_memory() -> None:
    linear = nn.Linear(4, 3)
    assert LaidLinear(linear, "columns", 1).weight.stride() == (1, 3)
    assert LaidLinear(linear, "rows", 1).weight.data_ptr() == linear.weight.data_ptr()


@pytest.mark.parametrize(("seconds", "chosen"), [
    ({"rows": 1.0, "columns": 0.95}, "rows"), ({"rows": 1.0, "columns": 0.8}, "columns"),
    ({"rows": 1.0, "columns": 0.8, "packed": 0.5}, "packed"), ({"rows": 1.0, "columns": 2.0}, "rows")])
def test_a_layout_must_be_faster_by_a_tenth(seconds: dict[Layout, float], chosen: Layout) -> None:
    assert fastest(seconds) == chosen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_laid_out_model_gives_the_same_tokens_and_says_what_was_measured(dtype: torch.dtype) -> None:
    model: Any = decoder(ROPE, MLP).to(dtype)
    form = for_decoding(model, rows=2)
    prompts = [[1, 2, 3], [4]]
    assert generate(form.model, prompts, max_new_tokens=12) == generate(model, prompts, max_new_tokens=12)
    assert {(kind.shape, kind.count) for kind in form.measured} >= {((12, 8), 2), ((11, 8), 1)}
    for kind in form.measured:
        assert kind.chosen in kind.seconds
        assert ("packed" in kind.seconds) == (dtype is torch.float32 and torch.backends.mkl.is_available())

"""Linear maps laid out for decoding: equal in every layout, chosen by what was measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from decoding.small_models import MLP, ROPE, decoder
from weft.decoding import for_decoding, generate
from weft.decoding.session import Session
from weft.decoding.steps import PATIENCE
from weft.linear.layout import TURNS, LaidLinear, Layout, chosen, faster


@pytest.mark.parametrize("layout", ["plain", "columns", "packed"])
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


def test_columns_lie_side_by_side() -> None:
    assert LaidLinear(nn.Linear(4, 3), "columns", 1).weight.stride() == (1, 3)


@pytest.mark.parametrize(("seconds", "wanted"), [
    ({"plain": 1.0, "columns": 0.9}, "plain"), ({"plain": 1.0, "columns": 0.8}, "columns"),
    ({"plain": 1.0, "columns": 0.8, "packed": 0.5}, "packed"), ({"plain": 1.0, "columns": 2.0}, "plain")])
def test_a_layout_must_be_clearly_faster_than_plain(seconds: dict[Layout, float], wanted: Layout) -> None:
    assert chosen({layout: [value] * TURNS for layout, value in seconds.items()}) == wanted


@pytest.mark.parametrize(("lost", "wanted"), [(0, "columns"), (1, "columns"), (2, "plain")])
def test_a_layout_that_loses_two_turns_is_not_chosen_however_fast_it_is_in_the_others(lost: int, wanted: str) -> None:
    assert chosen({"plain": [1.0] * TURNS, "columns": [1.5] * lost + [0.5] * (TURNS - lost)}) == wanted


@pytest.mark.parametrize(("laid", "wanted"), [(0.9, True), (1.0, True), (1.01, False)])
def test_a_layout_that_makes_a_whole_step_slower_is_not_used(laid: float, wanted: bool) -> None:
    first = iter([100.0])  # a first turn fills caches
    assert faster(lambda: next(first, laid), lambda: 1.0) is wanted


@pytest.mark.parametrize("kept", [True, False])
def test_the_model_is_laid_out_only_if_its_step_is_not_slower(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.linear.layout.chosen", lambda turns: "columns")
    monkeypatch.setattr("weft.linear.layout.faster", lambda laid, plain: laid() > 0 and plain() > 0 and kept)
    form = for_decoding(decoder(ROPE, MLP), rows=2)
    assert form.kept is kept and any(isinstance(module, LaidLinear) for module in form.model.modules()) is kept


def test_steps_are_compared_as_sessions_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """By tape: a layout that is faster only in a plain step, whose sequences of native calls it breaks, is slower."""
    seen: list[bool] = []

    class Watched(Session):
        def advance(self, tokens: Tensor, moving: Tensor | None = None) -> None:
            seen.append(self.by_tape)
            super().advance(tokens, moving)

    monkeypatch.setattr("weft.decoding.laid_out.Session", Watched)
    monkeypatch.setattr("weft.linear.layout.chosen", lambda turns: "columns")
    assert for_decoding(decoder(ROPE, MLP).float(), rows=2).kept in (True, False)
    assert seen.count(True) == 2 * (TURNS + 1) and seen.count(False) == 2 * (PATIENCE + 2)


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

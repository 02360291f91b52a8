"""One token of Mamba's convolution and scan in C: against float64, in every instruction set, at odd sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ops.native_sets import instructions, numbers, without_gradients
from weft.ops.forms import OPERATIONS, forced
from weft.ops.gated_scan import GATED_SCAN, GatedScanCall, written_out
from weft.ops.native_states import native_scan_token, native_taps
from weft.ops.short_convolution import SHORT_CONVOLUTION, ShortConvolutionCall, by_taps

__all__ = ["instructions", "without_gradients"]
DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [1, 16, 37, 600])
def test_a_token_is_convolved(dtype: torch.dtype, channels: int, instructions: str) -> None:
    for taps, dilation, silu in ((1, 1, False), (4, 1, True), (3, 2, False)):
        x = numbers(3, (taps - 1) * dilation + 1, channels, dtype=dtype)
        weight, bias = numbers(channels, 1, taps, seed=1, dtype=dtype), numbers(channels, seed=2, dtype=dtype)
        for own in (None, bias):
            y = by_taps(x.double(), weight.double(), None if own is None else own.double(), dilation, None)
            y = F.silu(y) if silu else y
            found = native_taps(x, weight[:, 0].t().contiguous(), own, dilation, silu)
            # Some roundings of float32 of terms of up to ten; a result in bfloat16 is rounded by 2^-8 of itself.
            room = 1e-5 + (0 if dtype == torch.float32 else 2.0**-8 * y.abs())
            assert found.dtype == dtype and ((found.double() - y).abs() <= room).all()


def call_of(rows: int, states: int, channels: int, dtype: torch.dtype, starts: Tensor | None) -> GatedScanCall:
    wide = numbers(rows, 1, 2 * channels, seed=7, dtype=dtype)
    both = numbers(rows, 1, 2 * states + 3, seed=8)
    return GatedScanCall(
        numbers(rows, 1, channels), 3 * numbers(rows, 1, channels, seed=1), numbers(channels, seed=2),
        -numbers(states, channels, seed=3).exp(), both[..., 3 : 3 + states], both[..., 3 + states :],
        numbers(channels, seed=4), wide[..., channels:], numbers(rows, states, channels, seed=5), starts)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_is_scanned(dtype: torch.dtype, instructions: str) -> None:
    for rows, states, channels in ((1, 16, 600), (3, 1, 5), (2, 7, 33)):
        for starts in (None, (torch.arange(rows) % 2 == 1)[:, None]):
            call = call_of(rows, states, channels, dtype, starts)
            exact = GatedScanCall(*(x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in call))
            y, after = written_out(exact)
            found, state = native_scan_token(*call)
            # Functions off by 2e-7 and some twenty roundings of float32, for sums of up to sixteen states.
            bound = 1e-5 * max(1.0, float(y.abs().max()))
            assert (state.double() - after).abs().max() <= 1e-5 * max(1.0, float(after.abs().max()))
            room = bound + (0 if dtype == torch.float32 else 2.0**-8 * y.abs())
            assert found.dtype == dtype and state.dtype == torch.float32
            assert ((found.double() - y).abs() <= room).all()


def test_a_state_that_is_cleared_is_not_read_and_a_step_of_zero_keeps_it(instructions: str) -> None:
    call = call_of(2, 4, 20, torch.float32, torch.tensor([[True], [False]]))
    wanted = native_scan_token(*call)
    call.before[0] = torch.nan
    for one, other in zip(native_scan_token(*call), wanted, strict=True):
        assert torch.equal(one, other)
    call.step[1] = -torch.inf
    assert torch.equal(native_scan_token(*call)[1][1], call.before[1])


def test_what_they_are_chosen_for_and_why_not() -> None:
    x, weight = numbers(2, 3, 8), numbers(8, 1, 3)
    assert SHORT_CONVOLUTION.choose(ShortConvolutionCall(x, weight, None, 1, None)).form.name == "native_token"
    for call, reason in ((ShortConvolutionCall(x, weight, None, 1, torch.zeros(1, 1, 1)), "a document begins inside"),
                         (ShortConvolutionCall(numbers(2, 4, 8), weight, None, 1, None), "not one token"),
                         (ShortConvolutionCall(x, numbers(8, 8, 3), None, 1, None), "taps mix channels"),
                         (ShortConvolutionCall(x, weight, numbers(8).double(), 1, None), "of several dtypes")):
        assert any("native_token: " in each and reason in each for each in SHORT_CONVOLUTION.choose(call).passed)
    scan = call_of(2, 4, 8, torch.float32, None)
    assert GATED_SCAN.choose(scan).form.name == "token"
    assert "token: several tokens" in GATED_SCAN.choose(scan._replace(u=numbers(2, 2, 8))).passed
    assert "token: its tensors are of several dtypes" in GATED_SCAN.choose(
        scan._replace(before=scan.before.double())).passed
    with forced({"selective_scan": "reference"}):
        assert "token: the form of its scan is named" in GATED_SCAN.choose(scan).passed


@pytest.mark.parametrize("name", ["native_norm", "native_rotary", "native_taps", "native_scan_token", "native_query"])
def test_a_plan_knows_what_a_step_in_c_costs(name: str) -> None:
    assert OPERATIONS.formula(f"weft.{name}") is not None

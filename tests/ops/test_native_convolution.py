"""Depthwise short convolutions in C: every instruction set, second derivatives, costs, threads, choice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from operations_counted import flops_of
from weft.ops.native.library import VARIABLE, NativeLibrary, loaded
from weft.ops.native_short_convolution import TOKENS
from weft.ops.short_convolution import SHORT_CONVOLUTION, ShortConvolutionCall

LIBRARY = loaded()
assert isinstance(LIBRARY, NativeLibrary), f"the tests need a C compiler: {LIBRARY.detail}"


def call(steps: int, channels: int = 5, *, taps: int = 4, dilation: int = 1, bias: bool = True, packed: bool = False,
         dtype: torch.dtype = torch.float32, silu: bool = False) -> ShortConvolutionCall:
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    age = ((torch.arange(steps) + torch.arange(2)[:, None]) % 5)[..., None] if packed else None
    return ShortConvolutionCall(make(2, steps + (taps - 1) * dilation, channels), make(channels, 1, taps),
                                make(channels) if bias else None, dilation, age, silu)


def outcome(x: ShortConvolutionCall, form: str) -> list[Tensor]:
    """The result and all gradients."""
    y = SHORT_CONVOLUTION(x, form)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y.dtype)
    return [y, *torch.autograd.grad(y, [each for each in x[:3] if isinstance(each, Tensor)], weights)]


@pytest.mark.parametrize("instructions", LIBRARY.sets)
@pytest.mark.parametrize(("steps", "channels", "fields"), [
    (TOKENS, 67, {}), (2 * TOKENS + 5, 16, {"packed": True}), (TOKENS + 1, 33, {"dilation": 3, "bias": False}),
    (3, 40, {"taps": 1}), (2, 18, {"dilation": 5, "packed": True}),
    (TOKENS + 2, 35, {"silu": True, "packed": True}), (2 * TOKENS, 16, {"silu": True, "bias": False}),
])
def test_c_equals_the_sum_over_taps(instructions: str, steps: int, channels: int, fields: dict[str, int],
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, instructions)
    exact = outcome(call(steps, channels, dtype=torch.float64, **fields), "reference")
    for expected, got in zip(exact, outcome(call(steps, channels, **fields), "native"), strict=True):
        # Sums of up to 270 products in float32, each rounded to 6e-8.
        assert (got.double() - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("silu", [False, True])
def test_second_derivatives_are_those_of_the_taps(silu: bool) -> None:
    found = []
    for form in ("reference", "native"):
        x = call(7, packed=True, silu=silu)
        leaves = [each for each in x[:3] if isinstance(each, Tensor)]
        first = torch.autograd.grad(SHORT_CONVOLUTION(x, form).pow(3).sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad(sum(each.square().sum() for each in first), leaves))
    for expected, got in zip(*found, strict=True):
        assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_the_operator_is_well_formed() -> None:
    x = call(5, packed=True)
    found = torch.library.opcheck(torch.ops.weft.native_short_convolution.default,
                                  (x.inputs, x.weight, x.bias, x.age, x.dilation, True),
                                  test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    assert set(found.values()) == {"SUCCESS"}


def test_operations_by_hand() -> None:
    """Two rows, 9 tokens, 5 channels, 4 taps; twice that for the gradients of inputs and of taps."""
    x = call(9)
    forward = (x.inputs, x.weight, x.bias, None, 1, False)
    assert flops_of(torch.ops.weft.native_short_convolution, forward, None) == 2 * 2 * 9 * 5 * 4
    backward = (x.inputs, x.inputs, x.weight, x.bias, None, 1, False)
    assert flops_of(torch.ops.weft.native_short_convolution_backward, backward, None) == 4 * 2 * 9 * 5 * 4


def test_threads_do_not_change_the_bits() -> None:
    alone = outcome(call(200, 40, silu=True), "native")
    torch.set_num_threads(3)
    try:
        together = outcome(call(200, 40, silu=True), "native")
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize(("x", "form", "reason"), [
    (call(1), "token", None), (call(1, packed=True), "reference", "native: a single token"),
    (call(2), "native", "token: not one token"), (call(2, dtype=torch.float64), "library", "native: it runs only in"),
    (call(2)._replace(weight=torch.ones(5, 5, 4)), "library", "native: taps mix channels"),
    (call(2)._replace(weight=torch.ones(5, 1, 4).double()), "library", "native: no tokens, or several dtypes"),
])
def test_which_form_is_chosen(x: ShortConvolutionCall, form: str, reason: str | None) -> None:
    found = SHORT_CONVOLUTION.choose(x)
    assert found.form.name == form
    assert reason is None or any(each.startswith(reason) for each in found.passed)

"""Convolutions with a kernel as long as the row in C: every instruction set, documents, second derivatives, costs,
threads, choice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from operations_counted import flops_of
from weft.ops.fft_convolution import FFT_CONVOLUTION, ConvolutionCall
from weft.ops.native.library import VARIABLE, NativeLibrary, loaded
from weft.ops.native_long_convolution import by_terms, first_read, in_c
from weft.ops.packed_convolution import PACKED_CONVOLUTION, PackedConvolutionCall

LIBRARY = loaded()
assert isinstance(LIBRARY, NativeLibrary), f"the tests need a C compiler: {LIBRARY.detail}"
LAGS = 64
"""Of a piece of work; as in native/long_convolution.h."""


def given(steps: int, channels: int = 5, *, every: int = 0, counts: tuple[int, int] | None = None,
          dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor | None]:
    """Inputs, a kernel, and what each token reads: documents begin every so many tokens, later in the second row."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    first = None
    if every:
        starts = (torch.arange(steps) + torch.arange(2)[:, None]) % every == every - 1
        first = first_read(starts, None if counts is None else torch.tensor(counts))
    return make(2, steps, channels), make(channels, steps), first


def outcome(u: Tensor, kernel: Tensor, first: Tensor | None, native: bool) -> list[Tensor]:
    """The result and both gradients."""
    y = (in_c if native else by_terms)(u, kernel, first)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(y.dtype)
    return [y, *torch.autograd.grad(y, (u, kernel), weights)]


def test_what_each_token_reads_by_hand() -> None:
    """Documents begin at 0, 2 and 3; of the second row three tokens are counted."""
    starts = torch.tensor([[0, 0, 1, 1, 0], [1, 0, 1, 1, 0]], dtype=torch.bool)
    assert first_read(starts, None).tolist() == [[0, 0, 2, 3, 3]] * 2
    assert first_read(starts, torch.tensor([5, 3])).tolist() == [[0, 0, 2, 3, 3], [0, 0, 2, 4, 5]]


@pytest.mark.parametrize("instructions", LIBRARY.sets)
@pytest.mark.parametrize(("steps", "channels", "fields"), [
    (1, 3, {}), (8, 16, {}), (9, 17, {}), (LAGS + 3, 37, {}), (2 * LAGS + 8, 5, {}),
    (21, 5, {"every": 1}), (40, 20, {"every": 3}), (LAGS + 5, 16, {"every": 13}), (2 * LAGS, 3, {"every": 30}),
    (40, 5, {"every": 50, "counts": (40, 0)}), (43, 18, {"every": 17, "counts": (5, 41)}),
])
def test_c_equals_the_sum_over_terms(instructions: str, steps: int, channels: int, fields: dict[str, Any],
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, instructions)
    exact = outcome(*given(steps, channels, dtype=torch.float64, **fields), native=False)
    for expected, got in zip(exact, outcome(*given(steps, channels, **fields), native=True), strict=True):
        # Sums of up to 272 products in float32, each rounded to 6e-8.
        assert (got.double() - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("lost", [0, 7, 12, 20])
def test_nothing_passes_back_in_time_or_between_documents(lost: int) -> None:
    """A NaN is seen by the later tokens of its document alone, and its gradient by the earlier ones."""
    u, kernel, _ = given(24)
    starts = (torch.arange(24) == 13).expand(2, -1)
    first = first_read(starts, None)
    y = in_c(u.detach().index_fill(1, torch.tensor(lost), torch.nan), kernel.detach(), first)
    end = 13 if lost < 13 else 24
    seen = torch.arange(24)[lost:end]
    assert y[:, seen].isnan().all() and y.isnan().sum() == y[:, seen].numel()
    dy = torch.ones_like(y).index_fill(1, torch.tensor(lost), torch.nan)
    du, = torch.autograd.grad(in_c(u, kernel, first), u, dy)
    seen = torch.arange(24)[0 if lost < 13 else 13:lost + 1]
    assert du[:, seen].isnan().all() and du.isnan().sum() == du[:, seen].numel()


@pytest.mark.filterwarnings("error")
def test_second_derivatives_are_those_of_the_terms() -> None:
    u, kernel, first = given(11, every=4)
    found = []
    for form in (by_terms, in_c):
        slopes = torch.autograd.grad(form(u, kernel, first).pow(3).sum(), (u, kernel), create_graph=True)
        found.append(torch.autograd.grad([each.square().sum() for each in slopes], (u, kernel)))
    for expected, got in zip(*found, strict=True):
        assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("every", [0, 3])
def test_the_operator_is_well_formed(every: int) -> None:
    found = torch.library.opcheck(torch.ops.weft.native_long_convolution.default, given(9, every=every),
                                  test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    assert set(found.values()) == {"SUCCESS"}


def test_operations_by_hand() -> None:
    """Two rows, 5 channels, 9 tokens: 45 products and sums; backward twice as many."""
    u, kernel, _ = given(9)
    assert flops_of(torch.ops.weft.native_long_convolution, (u, kernel, None), None) == 2 * 5 * 2 * 45
    backward = (u, u, kernel, None)
    assert flops_of(torch.ops.weft.native_long_convolution_backward, backward, None) == 2 * 2 * 5 * 2 * 45


def test_threads_do_not_change_the_bits() -> None:
    alone = outcome(*given(200, 40, every=90), native=True)
    torch.set_num_threads(3)
    try:
        together = outcome(*given(200, 40, every=90), native=True)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_a_longer_kernel_is_read_as_far_as_the_rows() -> None:
    u, kernel, _ = given(12)
    starts = torch.arange(24).view(2, 12) % 7 == 3
    longer = torch.cat([kernel, torch.full((5, 4), torch.nan)], 1)
    found = [PACKED_CONVOLUTION(PackedConvolutionCall(u, each, starts, None), "native") for each in (kernel, longer)]
    torch.testing.assert_close(*found, rtol=0, atol=0)


def whole(steps: int, dtype: torch.dtype = torch.float32) -> ConvolutionCall:
    return ConvolutionCall(torch.ones(1, 3, steps, dtype=dtype), torch.ones(3, steps, dtype=dtype))


@pytest.mark.parametrize(("call", "form", "reason"), [
    (whole(40), "native", None), (whole(40, torch.float64), "operator", "native: it runs only in float32"),
    (whole(20_000), "operator", "native: too many tokens"),
    (whole(40)._replace(kernel=torch.ones(3, 40).double()), "operator", "native: its tensors have several dtypes"),
    (whole(0), "operator", "native: there are no tokens or channels"),
])
def test_which_form_is_chosen(call: ConvolutionCall, form: str, reason: str | None) -> None:
    found = FFT_CONVOLUTION.choose(call)
    assert found.form.name == form
    assert reason is None or any(each.startswith(reason) for each in found.passed)


def test_which_form_is_chosen_for_documents() -> None:
    starts = torch.zeros(1, 40, dtype=torch.bool)
    call = PackedConvolutionCall(torch.ones(1, 40, 3), torch.ones(3, 40), starts, None)
    assert PACKED_CONVOLUTION.choose(call).form.name == "native"
    found = PACKED_CONVOLUTION.choose(call._replace(kernel=torch.ones(3, 30)))
    assert found.form.name == "operator" and found.passed == ("native: the kernel is shorter than the rows",)

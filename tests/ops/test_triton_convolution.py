"""The short convolution in Triton: interpreted where there is no GPU, at real lengths on one; what it serves and costs.

`test_forms` holds it to the reference on the examples of the operation, too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from operations_counted import flops_of
from weft.core.errors import UnsupportedError
from weft.ops.short_convolution import SHORT_CONVOLUTION, ShortConvolutionCall
from weft.ops.triton import library
from weft.ops.triton import short_convolution as triton_convolution

REASON = library.why_not()
assert REASON is None, f"the tests need Triton, which the extra dev installs: {REASON}"
DEVICE = "cpu" if library.interpreted() else "cuda"
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Relative to the largest entry: sums of some thousand terms in float32. In bfloat16, of 8 bits, results are rounded
once, and the gradient before the silu as well."""
CASES = [(2, 70, 5, 4, 1), (1, 9, 3, 3, 4), (2, 5, 3, 1, 1)] if DEVICE == "cpu" else [
    (8, 2048, 2560, 4, 1), (2, 1000, 1530, 3, 64), (1, 4096, 1536, 4, 1), (2, 300, 70, 16, 2)]
"""Rows, tokens, channels, taps and dilation: past the borders of tiles and segments."""


def convolution(sizes: tuple[int, int, int, int, int], whole: bool = True,
                dtype: torch.dtype = torch.float32) -> ShortConvolutionCall:
    """A call; a whole one has documents, a bias and a silu."""
    rows, steps, width, taps, dilation = sizes
    random = torch.Generator().manual_seed(0)
    inputs, weight, bias = (torch.randn(shape, generator=random).to(DEVICE, dtype).requires_grad_() for shape in (
        (rows, steps + (taps - 1) * dilation, width), (width, 1, taps), (width,)))
    age = (torch.arange(steps) + torch.arange(rows)[:, None])[..., None] % 67 % 11
    return ShortConvolutionCall(inputs, weight, bias if whole else None, dilation, age.to(DEVICE) if whole else None,
                                whole)


def outcome(call: ShortConvolutionCall, form: str) -> list[Tensor]:
    """The result and all gradients."""
    y = SHORT_CONVOLUTION(call, form)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).bfloat16().to(y)
    leaves = [each for each in call[:3] if isinstance(each, Tensor)]
    return [each.detach() for each in (y, *torch.autograd.grad(y, leaves, weights))]


def double(call: ShortConvolutionCall) -> ShortConvolutionCall:
    return call._replace(**{name: x.detach().double().requires_grad_() for name in ("inputs", "weight", "bias")
                            if (x := getattr(call, name)) is not None})


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("sizes", CASES)
def test_it_equals_the_sum_over_taps_and_gives_the_same_bits_twice(
        sizes: tuple[int, int, int, int, int], dtype: torch.dtype, whole: bool,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_convolution, "SEGMENT", 64 if DEVICE == "cpu" else triton_convolution.SEGMENT)
    call = convolution(sizes, whole, dtype)
    found = outcome(call, "triton")
    for got, expected in zip(found, outcome(double(call), "reference"), strict=True):
        assert got.dtype == dtype
        assert (got.double() - expected).abs().max() <= BOUNDS[dtype] * expected.abs().max()
    assert all(map(torch.equal, found, outcome(call, "triton")))


def test_rows_may_have_the_same_ages() -> None:
    call = convolution((2, 9, 3, 4, 1))
    assert call.age is not None
    shared = call._replace(age=call.age[:1])
    same = shared._replace(age=shared.age.expand(2, -1, -1) if shared.age is not None else None)
    assert all(map(torch.equal, outcome(shared, "triton"), outcome(same, "triton")))


def test_the_operator_is_well_formed() -> None:
    """Fake shapes, gradients and aliasing agree with what it does, as `torch.compile` relies on."""
    for whole in (False, True):
        found = torch.library.opcheck(torch.ops.weft.triton_short_convolution.default,
                                      tuple(convolution((2, 5, 3, 4, 1), whole)))
        assert set(found.values()) == {"SUCCESS"}


def test_compiled_it_computes_what_it_does_outside() -> None:
    call = convolution((2, 5, 3, 4, 1), dtype=torch.bfloat16)
    torch._dynamo.reset()
    run = SHORT_CONVOLUTION.form("triton").run
    with torch.no_grad():
        assert torch.equal(torch.compile(run, backend="aot_eager", fullgraph=True)(call), run(call))


def test_a_backward_pass_can_be_differentiated() -> None:
    slopes = []
    for form, given in (("triton", convolution((1, 5, 3, 4, 1))), ("reference", double(convolution((1, 5, 3, 4, 1))))):
        slope, = torch.autograd.grad(SHORT_CONVOLUTION(given, form).square().sum(), given.inputs, create_graph=True)
        slopes.append(torch.autograd.grad(slope.square().sum(), given.weight)[0].detach())
    assert (slopes[0].double() - slopes[1]).abs().max() <= BOUNDS[torch.float32] * slopes[1].abs().max()


def test_operations_by_hand() -> None:
    """A product and a sum for each tap, token and channel; twice as many backward."""
    call = convolution((2, 5, 3, 4, 1))
    assert flops_of(torch.ops.weft.triton_short_convolution, tuple(call), None) == 2 * 2 * 5 * 3 * 4
    assert flops_of(torch.ops.weft.triton_short_convolution_backward, (torch.ones(2, 5, 3), *call),
                    None) == 4 * 2 * 5 * 3 * 4


@pytest.mark.parametrize(("changes", "reason"), [
    ({"weight": torch.ones(3, 3, 4)}, "taps mix channels"),
    ({"weight": torch.ones(3, 1, 17), "inputs": torch.ones(1, 20, 3)}, "it has more than 16 taps"),
    ({"bias": torch.ones(3).double()}, "its tensors are of several dtypes"),
    ({"inputs": torch.ones(0, 9, 3)}, "there are no channels, rows or tokens"),
    ({"inputs": torch.ones(1, 3, 3)}, "there are no channels, rows or tokens"),
    ({"inputs": torch.ones(1, 9, 3).double()}, "it runs only in bfloat16 or float32"),
])
def test_why_a_call_is_not_served(changes: dict[str, Any], reason: str) -> None:
    call = convolution((1, 6, 3, 4, 1))._replace(**{name: x.to(DEVICE) for name, x in changes.items()})
    with pytest.raises(UnsupportedError, match=f"the form 'triton' .* this call: {reason}"):
        SHORT_CONVOLUTION(call, "triton")

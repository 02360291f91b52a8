"""Operators that keep little for their backward pass: values, first and second derivatives, and what they keep."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from weft.ops.activations import ACTIVATIONS, ActivationName, gated_product
from weft.ops.norms import RMS_NORM, RMSNormCall, rms_norm

B, T, D = 2, 3, 5


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return numbers.to(dtype).requires_grad_()


def twice(loss: Callable[..., Tensor], arguments: list[Tensor]) -> list[Tensor]:
    """Value, gradients, and gradients of the gradients' sum of squares."""
    y = loss(*arguments)
    first = torch.autograd.grad(y.square().sum(), arguments, create_graph=True)
    plain = torch.autograd.grad(loss(*arguments).square().sum(), arguments)
    second = torch.autograd.grad(torch.stack([g.square().sum() for g in first]).sum(), arguments)
    return [y, *plain, *first, *second]


def compare(mine: Callable[..., Tensor], plain: Callable[..., Tensor], arguments: list[Tensor]) -> None:
    for found, wanted in zip(twice(mine, arguments), twice(plain, arguments), strict=True):
        assert_close(found, wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rms_norm_is_torchs(scaled: bool, eps: float) -> None:
    arguments = [random(B, T, D, seed=0), *([random(D, seed=1)] if scaled else [])]
    compare(lambda x, scale=None: rms_norm(x, scale, eps), lambda x, scale=None: F.rms_norm(x, (D,), scale, eps),
            arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_narrow_scale_has_the_gradients_of_the_reference(dtype: torch.dtype) -> None:
    """The backward pass multiplied float32 by bfloat16 in one product, which raised."""
    x, scale = random(B, T, D, seed=0, dtype=dtype), random(D, seed=1, dtype=torch.bfloat16)
    form = next(each for each in RMS_NORM.forms() if each.name == "lean")
    y = form.run(RMSNormCall(x, scale, 1e-6))
    found = torch.autograd.grad(y.float().square().sum(), [x, scale])
    exact = [each.detach().double().requires_grad_() for each in (x, scale)]
    wanted = torch.autograd.grad(F.rms_norm(exact[0], (D,), exact[1], 1e-6).square().sum(), exact)
    for mine, other in zip(found, wanted, strict=True):
        # Rounded to bfloat16 three times on the way, each by 2^-9; sums of six numbers.
        assert_close(mine.double(), other, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_gated_product_is_activation_times_up(name: ActivationName) -> None:
    f = ACTIVATIONS[name]
    compare(lambda gate, up: gated_product(gate, up, f), lambda gate, up: f(gate) * up,
            [random(B, T, D, seed=0), random(B, T, D, seed=1)])


def test_bfloat16_is_normalised_in_float32_and_rounded_once() -> None:
    x, scale = random(B, T, D, seed=0, dtype=torch.bfloat16), random(D, seed=1, dtype=torch.float32)
    y = rms_norm(x, scale, 1e-6)
    exact = F.rms_norm(x.detach().double(), (D,), scale.detach().double(), 1e-6)
    assert y.dtype is torch.bfloat16
    # As near as the nearest bfloat16 number, but for the rounding of float32 before, which differs by processor.
    nearest = (exact.bfloat16().double() - exact).abs()
    assert ((y.double() - exact).abs() <= nearest + 1e-6 * exact.abs()).all()
    dx, dscale = torch.autograd.grad(y.sum(), [x, scale])
    assert (dx.dtype, dscale.dtype) == (torch.bfloat16, torch.float32)


def test_a_vector_of_zeros_has_a_finite_gradient() -> None:
    x = torch.zeros(1, D, dtype=torch.float64, requires_grad=True)
    dx, = torch.autograd.grad(rms_norm(x, None, 1e-6).sum(), x)
    assert_close(dx, torch.full_like(dx, 1e3), rtol=1e-9, atol=0)


def test_only_the_inputs_and_a_number_a_vector_are_kept() -> None:
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    x, scale, up = random(B, T, D, seed=0), random(D, seed=1), random(B, T, D, seed=2)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        rms_norm(x, scale, 1e-6)
        assert sorted(sizes) == [D, B * T, B * T * D]
        sizes.clear()
        gated_product(x, up, F.silu)
    assert sizes == [B * T * D, B * T * D]


def test_what_needs_no_gradient_gets_none() -> None:
    x, scale = random(B, T, D, seed=0).detach(), random(D, seed=1)
    dscale, = torch.autograd.grad(rms_norm(x, scale, 1e-6).sum(), scale)
    assert_close(dscale, F.rms_norm(x, (D,), None, 1e-6).sum((0, 1)), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        assert not rms_norm(x, scale, 1e-6).requires_grad


def test_the_compiler_sees_the_plain_chains() -> None:
    x, scale, up = random(B, T, D, seed=0), random(D, seed=1), random(B, T, D, seed=2)

    def both(x: Tensor, scale: Tensor, up: Tensor) -> Tensor:
        return gated_product(rms_norm(x, scale, 1e-6), up, F.silu)

    torch._dynamo.reset()
    found = torch.compile(both, fullgraph=True, backend="aot_eager")(x, scale, up)
    assert_close(found, both(x, scale, up), rtol=1e-12, atol=1e-12)

"""The scans against the plain loops they replace: values and every gradient, in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import weft.ops.fft_convolution  # noqa: F401  declares its operator
from weft.ops.elman_scan import elman_scan, elman_steps
from weft.ops.gru_scan import gru_scan, gru_steps
from weft.ops.lstm_scan import lstm_scan, lstm_steps
from weft.ops.recurrence import after_count

B, T, H = 3, 6, 4
Scan = Callable[..., Tensor | tuple[Tensor, ...]]


def elman(scan: Scan, *args: Tensor, activation: str) -> Tensor | tuple[Tensor, ...]:
    projected, weight, h, starts = args
    return scan(projected, weight, h, activation, starts)


CASES: dict[str, tuple[Scan, Scan, list[tuple[int, ...]]]] = {
    "lstm": (lstm_steps, lstm_scan, [(T, B, 4 * H), (4 * H, H), (B, H), (B, H)]),
    "gru": (gru_steps, gru_scan, [(T, B, 3 * H), (3 * H, H), (H,), (B, H)]),
    **{f"elman-{name}": (partial(elman, elman_steps, activation=name), partial(elman, elman_scan, activation=name),
                         [(T, B, H), (H, H), (B, H)]) for name in ("tanh", "sigmoid", "relu")},
}


def twice(function: Scan, args: list[Tensor], starts: Tensor | None) -> list[Tensor]:
    """Gradients of the gradients' squares, by a backward pass that is differentiated, twice in a row."""
    values = function(*args, starts)
    loss = sum(v.square().sum() for v in (values if isinstance(values, tuple) else (values,)))
    found = []
    for _ in range(2):
        grads = torch.autograd.grad(loss, args, create_graph=True)
        loss = sum(grad.square().sum() for grad in grads)
        found += torch.autograd.grad(loss, args, retain_graph=True)
    return found


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_second_and_third_derivatives_are_those_of_the_steps(name: str, reset: bool) -> None:
    steps, scan, shapes = CASES[name]
    torch.manual_seed(0)
    args = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    starts = torch.rand(T, B) < 0.4 if reset else None
    for expected, got in zip(twice(steps, args, starts), twice(scan, args, starts), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_scan_equals_steps(name: str, reset: bool) -> None:
    steps, scan, shapes = CASES[name]
    torch.manual_seed(0)
    args = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    starts = torch.rand(T, B) < 0.4 if reset else None
    results = []
    for function in (steps, scan):
        values = function(*args, starts)
        values = values if isinstance(values, tuple) else (values,)
        generator = torch.Generator().manual_seed(1)
        loss = sum((v * torch.randn(v.shape, dtype=v.dtype, generator=generator)).sum() for v in values)
        assert isinstance(loss, Tensor)
        results.append([*values, *torch.autograd.grad(loss, args)])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)


def test_operators_are_well_formed() -> None:
    """Fake shapes, gradients and aliasing agree with what the operators do, as `torch.compile` relies on."""
    starts = torch.rand(T, B) < 0.4
    make = partial(torch.randn, requires_grad=True)
    for operator, args in (
        (torch.ops.weft.lstm_scan.default, (make(T, B, 4 * H), make(4 * H, H), make(B, H), make(B, H), starts)),
        (torch.ops.weft.gru_scan.default, (make(T, B, 3 * H), make(3 * H, H), make(H), make(B, H), starts)),
        (torch.ops.weft.fft_convolution.default, (make(B, H, T), make(H, T))),
        (torch.ops.weft.elman_scan.default, (make(T, B, H), make(H, H), make(B, H), None, "tanh")),
    ):
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        result = torch.library.opcheck(operator, args, test_utils=tests)
        assert set(result.values()) == {"SUCCESS"}


def test_a_later_document_does_not_see_a_broken_earlier_one() -> None:
    """A reset replaces the state; multiplying it by zero would let NaN through."""
    projected = torch.randn(4, 1, 3)
    projected[0] = torch.nan
    starts = torch.tensor([[True], [False], [True], [False]])
    outputs = elman_scan(projected, torch.randn(3, 3), torch.zeros(1, 3), "tanh", starts)
    assert outputs[:2].isnan().all() and outputs[2:].isfinite().all()


def test_after_count() -> None:
    after = torch.arange(6.0).view(3, 2, 1) + 1
    first = torch.tensor([[10.0], [20.0]])
    assert after_count(first, after, torch.tensor([0, 2]))[:, 0].tolist() == [10.0, 4.0]
    assert after_count(first, after, None)[:, 0].tolist() == [5.0, 6.0]

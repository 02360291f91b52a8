"""Discretisation and kernel of diagonal state-space models in C: every instruction set, precision, second derivatives,
costs, threads, choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from operations_counted import flops_of
from weft.core.part_config import Dims
from weft.mixers.s4d import S4DConfig
from weft.ops.diagonal_system import S4D_DISCRETISATION, S4D_KERNEL, DiscretisationCall, ModesKernelCall
from weft.ops.forms import OPERATIONS, Operation
from weft.ops.native.library import VARIABLE, NativeLibrary, loaded
from weft.ops.s4d import Discretisation

LIBRARY = loaded()
assert isinstance(LIBRARY, NativeLibrary), f"the tests need a C compiler: {LIBRARY.detail}"


def make(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return numbers.to(torch.float32).to(dtype).requires_grad_()  # the same numbers in either dtype


def changed(x: Tensor, how: Callable[[Tensor], Tensor]) -> Tensor:
    """The same in either dtype: rounded to float32."""
    return how(x.detach().float()).to(x.dtype).requires_grad_()


def system(modes: int, dtype: torch.dtype = torch.float32, method: Discretisation = "zoh") -> DiscretisationCall:
    return DiscretisationCall(make(5, seed=0, dtype=dtype), make(5, modes, seed=1, dtype=dtype),
                              make(5, modes, seed=2, dtype=dtype), make(5, modes, 2, seed=3, dtype=dtype), method)


def kernel_of(modes: int, length: int, dtype: torch.dtype = torch.float32) -> ModesKernelCall:
    decay, angle = make(3, modes, seed=0, dtype=dtype), make(3, modes, seed=1, dtype=dtype)
    return ModesKernelCall(changed(decay, lambda x: -x.square() / 32), angle, make(3, modes, 2, seed=2, dtype=dtype),
                           make(3, modes, 2, seed=3, dtype=dtype), length)


def outcome(operation: Operation[Any, Any], call: Any, form: str) -> list[Tensor]:
    """The results and all gradients."""
    found = operation(call, form)
    found = [found] if isinstance(found, Tensor) else list(found)
    weights = [torch.randn(y.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(y.dtype)
               for y in found]
    leaves = [each for each in call if isinstance(each, Tensor)]
    return [*found, *torch.autograd.grad(found, leaves, weights)]


def assert_close(operation: Operation[Any, Any], call: Any, exact: Any, bound: float) -> None:
    for expected, got in zip(outcome(operation, exact, "reference"), outcome(operation, call, "native"), strict=True):
        assert got.dtype == torch.float32
        assert (got.double() - expected).abs().max() <= bound * expected.abs().max()


@pytest.mark.parametrize("instructions", LIBRARY.sets)
@pytest.mark.parametrize("modes", [1, 7, 8, 21])
def test_a_hold_in_c_equals_the_formula(instructions: str, modes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a few roundings of float32: everything between is in double."""
    monkeypatch.setenv(VARIABLE, instructions)
    assert_close(S4D_DISCRETISATION, system(modes), system(modes, torch.float64), 5e-7)


@pytest.mark.parametrize("instructions", LIBRARY.sets)
@pytest.mark.parametrize(("modes", "length"), [(1, 1), (3, 16), (5, 17), (2, 100), (2, 1024), (3, 2600)])
def test_a_kernel_in_c_equals_the_powers(instructions: str, modes: int, length: int,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """A power is up to 64 products away from an exact one, each of which rounds to 1e-7."""
    monkeypatch.setenv(VARIABLE, instructions)
    assert_close(S4D_KERNEL, kernel_of(modes, length), kernel_of(modes, length, torch.float64), 1e-5)


def test_small_steps_keep_their_digits() -> None:
    """exp(dt a) - 1 and what its slope is a difference of, of which float32 would leave three digits."""
    def small(dtype: torch.dtype) -> DiscretisationCall:
        call = system(6, dtype)
        return call._replace(log_dt=changed(call.log_dt, lambda x: x / 8 - 9))

    assert_close(S4D_DISCRETISATION, small(torch.float32), small(torch.float64), 5e-7)


def test_many_turns_keep_their_angle() -> None:
    """Thousands of radians at the last lag. The angle itself is a number of float32, and its rounding is not an error
    of the kernel: both forms are given the same."""
    def fast(dtype: torch.dtype) -> ModesKernelCall:
        call = kernel_of(3, 1500, dtype)
        return call._replace(angle=changed(call.angle, lambda x: 3 * x + 10),
                             log_radius=changed(call.log_radius, lambda x: x / 100))

    assert_close(S4D_KERNEL, fast(torch.float32), fast(torch.float64), 1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("operation", "call"), [(S4D_DISCRETISATION, system(3)), (S4D_KERNEL, kernel_of(3, 9))])
def test_second_derivatives_are_those_of_the_formula(operation: Operation[Any, Any], call: Any) -> None:
    found = []
    for form in ("reference", "native"):
        y = operation(call, form)
        y = [y] if isinstance(y, Tensor) else y
        leaves = [each for each in call if isinstance(each, Tensor)]
        first = torch.autograd.grad([each.pow(3).sum() for each in y], leaves, create_graph=True)
        found.append(torch.autograd.grad([each.square().sum() for each in first], leaves))
    for expected, got in zip(*found, strict=True):
        assert (got - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize(("operator", "args"), [
    ("native_hold", system(3)[:4]), ("native_modes_kernel", tuple(kernel_of(3, 9))),
])
def test_the_operators_are_well_formed(operator: str, args: tuple[Any, ...]) -> None:
    found = torch.library.opcheck(getattr(torch.ops.weft, operator).default, args,
                                  test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
    assert set(found.values()) == {"SUCCESS"}


def test_operations_by_hand() -> None:
    """Three channels of four modes and ten lags: the next power by four products and two sums, and the sum over
    modes; backward the next power, and a product and a sum for each of four sums."""
    call = kernel_of(4, 10)
    assert flops_of(torch.ops.weft.native_modes_kernel, tuple(call), None) == 3 * 4 * 10 * (6 + 1)
    backward = (torch.zeros(3, 10), *call[:4])
    assert flops_of(torch.ops.weft.native_modes_kernel_backward, backward, None) == 3 * 4 * 10 * (6 + 8)


def test_threads_do_not_change_the_bits() -> None:
    calls: list[tuple[Operation[Any, Any], Any]] = [(S4D_DISCRETISATION, system(40)),
                                                    (S4D_KERNEL, kernel_of(40, 300))]
    alone = [x for operation, call in calls for x in outcome(operation, call, "native")]
    torch.set_num_threads(3)
    try:
        together = [x for operation, call in calls for x in outcome(operation, call, "native")]
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize(("operation", "call", "form", "reason"), [
    (S4D_DISCRETISATION, system(3), "native", None),
    (S4D_DISCRETISATION, system(3, method="bilinear"), "reference", "native: only a zero-order hold is in C"),
    (S4D_DISCRETISATION, system(3, torch.float64), "reference", "native: it runs only in float32"),
    (S4D_DISCRETISATION, system(3)._replace(b=torch.ones(5, 3, 2).double()), "reference", "native: its tensors have"),
    (S4D_KERNEL, kernel_of(3, 9), "native", None), (S4D_KERNEL, kernel_of(3, 0), "blocks", "native: there are no lags"),
    (S4D_KERNEL, kernel_of(3, 9, torch.float64), "blocks", "native: it runs only in float32"),
])
def test_which_form_is_chosen(operation: Operation[Any, Any], call: Any, form: str, reason: str | None) -> None:
    found = operation.choose(call)
    assert found.form.name == form
    assert reason is None or any(each.startswith(reason) for each in found.passed)


def test_nan_in_a_decay_is_not_hidden() -> None:
    """Neither a kernel nor a system of a mode that is NaN is a number; other channels keep theirs."""
    call, kernel = system(3), kernel_of(3, 20)
    with torch.no_grad():
        call.log_decay[1, 2] = kernel.log_radius[1, 2] = torch.nan
        radius, _, held = S4D_DISCRETISATION(call, "native")
        lags = S4D_KERNEL(kernel, "native")
    assert radius[1, 2].isnan() and held[1, 2].isnan().all() and held[0].isfinite().all()
    assert lags[1].isnan().all() and lags[0].isfinite().all()


def test_a_layer_takes_c() -> None:
    """In training, forward and backward, without a state."""
    layer, x = S4DConfig(d_state=4).build(Dims(6)), torch.randn(2, 9, 6)
    with OPERATIONS.observed() as chosen:
        layer(x)
    forms = {each.operation: each.form for each in chosen}
    assert [forms[name] for name in ("s4d_discretisation", "s4d_kernel", "fft_convolution")] == ["native"] * 3

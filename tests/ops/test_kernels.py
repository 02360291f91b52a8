"""Kernels: a form without the operator that it is to PyTorch, which gives way where something observes operators or a
tensor's numbers lie elsewhere than its address says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ops.native_sets import without_gradients
from weft.core.errors import ConfigError
from weft.ops.form_check import differences
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Kernel, Make, Operation, forced

__all__ = ["without_gradients"]
WITH_KERNELS = [pytest.param(operation, form, id=f"{operation.name}-{form.name}")
                for operation in OPERATIONS.all() for form in operation.forms() if form.kernel is not None]


class Product(NamedTuple):
    x: Tensor
    weight: Tensor | None


def naive(call: Product) -> str:
    return "reference"


def by_operators(call: Product) -> str:
    return "operators"


def by_addresses(call: Product) -> str:
    return "kernel"


def examples(make: Make) -> Iterator[Product]:
    yield Product(make(3), make(3))


FAST = Form("fast", by_operators, "", gradients="without", transformed=False,
            kernel=Kernel(by_addresses, "x", "weight"))


def product(form: Form[Product, str] = FAST) -> Operation[Product, str]:
    return Operation("product", "", Form(REFERENCE, naive, "one by one"), form, subject="x", examples=examples)


class Elsewhere(Tensor):
    """A tensor that computes otherwise."""


class Observer(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:.*trace")
def test_a_kernel_gives_way_to_operators_where_they_are_observed_or_tensors_lie_elsewhere() -> None:
    operation, x, parameter = product(), torch.ones(3), nn.Parameter(torch.ones(3))
    other = x.as_subclass(Elsewhere)
    for call in (Product(x, x), Product(x, parameter), Product(x, None)):
        assert operation(call) == "kernel"
    assert {operation(Product(x, other)), operation(Product(other, x))} == {"operators"}
    negative = torch.complex(x, x).conj().imag
    assert negative.is_neg() and {operation(Product(x, negative)), operation(Product(negative, x))} == {"operators"}
    with Observer():
        assert operation(Product(x, x)) == "operators"
    with forced({}), torch.inference_mode(False), torch.enable_grad():
        assert operation(Product(x, x)) == "reference"
    names = []
    torch.jit.trace(lambda x: names.append(operation(Product(x, x))) or x, x, check_trace=False)
    assert names == ["operators"]
    assert operation.choose(Product(x, x)).form is operation.form("fast")


@pytest.mark.parametrize("form", [replace(FAST, gradients="any"), replace(FAST, transformed=True)])
def test_a_kernel_through_which_gradients_would_have_to_flow_is_refused(form: Form[Product, str]) -> None:
    with pytest.raises(ConfigError, match="the form 'fast' of 'product' has a kernel, through which no gradient flows"):
        product(form)


@pytest.mark.parametrize(("operation", "form"), WITH_KERNELS)
def test_a_kernel_gives_the_bits_of_its_form(operation: Operation[Any, Any], form: Form[Any, Any]) -> None:
    """The same function in C, called otherwise. That both are right is the comparison with the reference."""
    generator, served = torch.Generator().manual_seed(0), 0
    for call in operation.examples(lambda *shape: torch.randn(shape, generator=generator)):
        if not operation.can(form, call):
            continue
        served += 1
        assert form.kernel is not None and torch.equal(form.kernel.run(call), form.run(call))
        held = [each for each in tree_leaves(call if isinstance(call, tuple) else vars(call)) if each is not None]
        taken = [each for each in form.kernel.tensors(call) if each is not None]
        assert {id(each) for each in taken} == {id(each) for each in held if isinstance(each, Tensor)
                                                and not each.is_complex()}, "those that C reads are real"
    assert served


@pytest.mark.parametrize(("operation", "form"), WITH_KERNELS)
def test_what_lies_negated_in_memory_is_not_read_as_it_lies(operation: Operation[Any, Any],
                                                            form: Form[Any, Any]) -> None:
    generator, served = torch.Generator().manual_seed(0), 0
    for call in operation.examples(lambda *shape: torch.randn(shape, generator=generator)):
        if operation.choose(call).form is not form:
            continue
        served += 1
        subject = {operation.subject: torch._neg_view(-getattr(call, operation.subject))}
        negated = call._replace(**subject) if hasattr(call, "_replace") else replace(call, **subject)
        assert torch.equal(operation(negated), operation(call))
    assert served


def test_a_kernel_is_compared_with_the_reference_too() -> None:
    def doubled(call: Product) -> Tensor:
        return 2 * call.x

    def right(call: Product) -> Tensor:
        return call.x + call.x

    def wrong(call: Product) -> Tensor:
        return 3 * call.x

    for kernel, off in ((right, 0.0), (wrong, 0.5)):
        form: Form[Product, Tensor] = replace(FAST, run=right, kernel=Kernel(kernel, "x", "weight"))  # type: ignore[arg-type]
        operation = Operation("product", "", Form(REFERENCE, doubled, ""), form, subject="x", examples=examples)
        assert [each.values for each in differences(operation, form)] == pytest.approx([0.0, off])

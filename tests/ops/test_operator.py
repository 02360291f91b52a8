"""Second derivatives of operators of ours: arguments that depend on one another, and one tensor given twice."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.testing import assert_close

from weft.ops.operator import again


def plain(x: Tensor, y: Tensor) -> Tensor:
    return x.square() * y


def test_gradients_are_partial_where_an_argument_is_a_function_of_another() -> None:
    x = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    y = x.exp()
    dx, dy = again(plain, [x, y], torch.ones_like(x))
    assert dx is not None and dy is not None
    assert_close(dx, 2 * x * y)
    assert_close(dy, x.square())
    second, = torch.autograd.grad(dx.sum(), x)
    assert_close(second, 2 * y + 2 * x * y)


def test_a_tensor_that_is_given_twice_has_a_gradient_for_each_place() -> None:
    x = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    first, second = again(plain, [x, x], torch.ones_like(x))
    assert first is not None and second is not None
    assert_close(first, 2 * x.square())
    assert_close(second, x.square())


def test_what_needs_no_gradient_has_none() -> None:
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    assert again(plain, [x, torch.ones(2, dtype=torch.float64)], x.detach())[1] is None

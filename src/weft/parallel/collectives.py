"""Sums over the processes of one axis of the mesh, as differentiable functions of tensors.

A group is given by its name, so that modules which hold it can be copied, saved and compiled. Narrow floats are summed
in float32 and rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def entering(x: Tensor, group: str) -> Tensor:
    """``x`` itself; its gradient is the sum of the gradients of all processes, each of which computes a part of what
    depends on it."""
    y: Tensor = _Entering.apply(x, group)  # type: ignore[no-untyped-call]
    return y


def summed(x: Tensor, group: str) -> Tensor:
    """The sum of ``x`` over processes, which all go on with it alike; the gradient is passed on unchanged."""
    y: Tensor = _Summed.apply(x, group)  # type: ignore[no-untyped-call]
    return y


def largest(x: Tensor, group: str) -> Tensor:
    """The largest value over processes, without a gradient."""
    return _reduced(x.detach(), "max", group)


class _Entering(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _total(gradient, ctx.group), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        return _total(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _total(x: Tensor, group: str) -> Tensor:
    if x.is_complex():
        return torch.view_as_complex(_total(torch.view_as_real(x), group))
    return _reduced(x.to(torch.promote_types(x.dtype, torch.float32)), "sum", group).to(x.dtype)


def _reduced(x: Tensor, how: str, group: str) -> Tensor:
    operations = torch.ops._c10d_functional  # those that the compiler can trace
    y: Tensor = operations.wait_tensor(operations.all_reduce(x.contiguous(), how, group))
    return y

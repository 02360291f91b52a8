"""Linear maps of which each process has a part, in the place of whole ones.

Sums over the processes of one axis of the mesh, as differentiable functions of tensors.

A group is given by its name, so that modules which hold it can be copied, saved and compiled. Narrow floats are summed
in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from weft.core.errors import UnsupportedError
from weft.linear.linear import UNNAMED, Linear, Rewritten
from weft.ops.linear import linear


class DividedMap(Rewritten):
    """Base. ``weight`` and ``bias`` are this process's part, under the names of the whole map's.

    Args:
        bias: part of the bias, or all of it.
        group: name of the processes that have the other parts.
        outputs: as those of a `Linear`, of this part.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, group: str, *,
                 outputs: Mapping[str, int] = UNNAMED) -> None:
        super().__init__()
        self.outputs = dict(outputs)
        self.group, (self.out_features, self.in_features) = group, weight.shape
        self.weight, self.bias = nn.Parameter(weight), None if bias is None else nn.Parameter(bias)

    def merged(self) -> Linear:
        raise UnsupportedError("each process has a part of the map.", where=type(self).__name__,
                               remedy="Load a checkpoint of the run, which any one process can.")

    def dense(self) -> None:
        return None


class Into(DividedMap):
    """y_i = W_i x + b_i: some rows of W. The gradient of x is summed over processes."""

    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        return linear(entering(x, self.group), self.weight, self.bias)

    def between(self, h: Float[Tensor, "... rank"]) -> Float[Tensor, "... rank"]:
        return entering(h, self.group)  # every process has the first matrix, and some rows of the second


class OutOf(DividedMap):
    """y = sum over processes of W_i h_i, plus b: some columns of W.

    Args:
        group: name of the processes.
        goes_on: whether every process goes on with its own part, so that the gradient of y is a sum too.
        outputs: as those of a `Linear`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, group: str, *, goes_on: bool = False,
                 outputs: Mapping[str, int] = UNNAMED) -> None:
        super().__init__(weight, bias, group, outputs=outputs)
        self.goes_on = goes_on

    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        part = linear(x, self.weight)
        y = summed(part.to(torch.promote_types(part.dtype, torch.float32)), self.group)
        y = y if self.bias is None else y + self.bias
        y = y.to(part.dtype)
        return entering(y, self.group) if self.goes_on else y

    def between(self, h: Float[Tensor, "... rank"]) -> Float[Tensor, "... rank"]:
        # Every process has some columns of the first matrix, and all of the second.
        y = summed(h, self.group)
        return entering(y, self.group) if self.goes_on else y


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

"""A linear map whose products, forward and backward, each take the route that was measured to be the fastest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.ops.forms import Form
from weft.ops.linear import ROUTING, LinearCall, same_dtype
from weft.ops.operator import again, differentiate, operator
from weft.ops.products import forward_product, input_product, weight_product


def _run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One operator, so that a compiled graph takes the measured routes too."""
    y = forward_product(x.reshape(-1, x.shape[-1]), weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


def _shapes(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _run_backward(dy: Tensor, x: Tensor, weight: Tensor, needed: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, the matrix and the bias; an empty tensor for each that is not needed."""
    d, rows = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
    dx = input_product(d, weight).view(x.shape) if needed[0] else x.new_empty(0)
    dweight = weight_product(d, rows) if needed[1] else x.new_empty(0)
    return dx, dweight, d.sum(0) if needed[2] else x.new_empty(0)


def _backward_shapes(dy: Tensor, x: Tensor, weight: Tensor, needed: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    return (x.new_empty(x.shape if needed[0] else 0), x.new_empty(weight.shape if needed[1] else 0),
            x.new_empty(weight.shape[0] if needed[2] else 0))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    if torch.is_grad_enabled():  # the backward pass is differentiated itself: PyTorch's own map has second derivatives
        return tuple(again(F.linear, [x, weight, bias], dy))
    needed = list(ctx.needs_input_grad)
    gradients = _backward(dy, x, weight, needed)
    return tuple(each if need else None for each, need in zip(gradients, needed, strict=True))


_routed = operator("linear", _run, _shapes)
_backward = operator("linear_backward", _run_backward, _backward_shapes)
differentiate("linear", _gradient, _save)


def _flops(x: Tensor, weight: Tensor, *_: Any) -> int:
    """Operations of the map."""
    return 2 * x.shape[:-1].numel() * weight.numel()


def _backward_flops(dy: Tensor, x: Tensor, weight: Tensor, needed: list[bool]) -> int:
    """Operations of its backward pass."""
    return sum(needed[:2]) * _flops(x, weight)


def _linear(call: LinearCall) -> Tensor:
    y: Tensor = _routed(*call)
    return y


FORM = Form("routed", _linear, "each product by its fastest measured library", transformed=False,
            devices=frozenset({"cpu"}), serves=same_dtype, offer=ROUTING.offer,
            flops={"weft.linear": _flops, "weft.linear_backward": _backward_flops})
"""Of `weft.ops.linear`."""

"""A linear map, y = x W^T + b, and the ways to multiply it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.operator import again, differentiate, operator
from weft.ops.products import ROUTING, forward_product, input_product, weight_product
from weft.ops.wide_linear import wide_linear, widens


class LinearCall(NamedTuple):
    """x W^T + b, of one dtype."""

    x: Float[Tensor, "... in"]
    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None = None


def linear(x: Float[Tensor, "... in"], weight: Float[Tensor, "out in"],
           bias: Float[Tensor, " out"] | None = None) -> Float[Tensor, "... out"]:
    """x W^T + b."""
    return LINEAR(LinearCall(x, weight, bias))


def _written_out(call: LinearCall) -> Tensor:
    y = call.x @ call.weight.t()
    return y if call.bias is None else y + call.bias


def _library(call: LinearCall) -> Tensor:
    return F.linear(call.x, call.weight, call.bias)


def _wide(call: LinearCall) -> Tensor:
    return wide_linear(call.x, call.weight, call.bias)


def _routed(call: LinearCall) -> Tensor:
    y: Tensor = _forward(*call)
    return y


def _measured(call: LinearCall) -> str | None:
    if torch.is_autocast_enabled(call.x.device.type):
        return "autocast converts for PyTorch's own products"
    return "no products have been measured" if ROUTING.routes is None else None


def _run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One operator, so that a compiled graph too takes the routes that were measured."""
    y = forward_product(x.reshape(-1, x.shape[-1]), weight, bias)
    return y.view(*x.shape[:-1], weight.shape[0])


def _shapes(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _run_backward(dy: Tensor, x: Tensor, weight: Tensor, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, the matrix and the bias; those not wanted are empty."""
    d, rows = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
    dx = input_product(d, weight).view(x.shape) if wanted[0] else x.new_empty(0)
    dweight = weight_product(d, rows) if wanted[1] else x.new_empty(0)
    return dx, dweight, d.sum(0) if wanted[2] else x.new_empty(0)


def _backward_shapes(dy: Tensor, x: Tensor, weight: Tensor, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
    return (x.new_empty(x.shape if wanted[0] else 0), x.new_empty(weight.shape if wanted[1] else 0),
            x.new_empty(weight.shape[0] if wanted[2] else 0))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias = ctx.saved_tensors
    if torch.is_grad_enabled():  # second derivatives are wanted: PyTorch's own map has them
        return tuple(again(F.linear(x, weight, bias), [x, weight, bias], dy))
    wanted = list(ctx.needs_input_grad)
    found = _backward(dy, x, weight, wanted)
    return tuple(each if want else None for each, want in zip(found, wanted, strict=True))


_forward = operator("linear", _run, _shapes)
_backward = operator("linear_backward", _run_backward, _backward_shapes)
differentiate("linear", _gradient, _save)


def _flops(x: Tensor, weight: Tensor, *_: Any) -> int:
    return 2 * x.shape[:-1].numel() * weight.numel()


def _backward_flops(dy: Tensor, x: Tensor, weight: Tensor, wanted: list[bool]) -> int:
    return sum(wanted[:2]) * _flops(x, weight)


def _imitated(call: LinearCall) -> str | None:
    return None if widens(call.x) else "this processor multiplies the dtype itself"


def _examples(make: Make) -> Iterator[LinearCall]:
    yield LinearCall(make(2, 3, 5), make(7, 5), make(7))
    yield LinearCall(make(1, 1, 5), make(7, 5))
    yield LinearCall(make(0, 5), make(7, 5), make(7))


LINEAR = OPERATIONS.add(Operation(
    "linear", "x W^T + b",
    Form(REFERENCE, _written_out, "a product and a sum"),
    Form("library", _library, "PyTorch's own, by the library that it chooses", known_as=("torch", "default")),
    Form("wide", _wide, "the products of bfloat16 numbers in float32, each rounded once", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.bfloat16}), worth=_imitated),
    Form("routed", _routed, "each product by the library that was measured to be the fastest", transformed=False,
         devices=frozenset({"cpu"}), worth=_measured,
         flops={"weft.linear": _flops, "weft.linear_backward": _backward_flops}),
    subject="x", examples=_examples, known_as=("projection",)))

"""f(gate) * up, which keeps only its two inputs for the backward pass: computing f(gate) again costs less than writing
it to memory and reading it back. For the same reason the product itself is `cheap`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.ops.activations import identity
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.operator import again
from weft.ops.rematerialize import cheap


class GatedProductCall(NamedTuple):
    """The arguments of `gated_product`."""

    gate: Float[Tensor, "... F"]
    up: Float[Tensor, "... F"]
    activation: Callable[[Tensor], Tensor]


def gated_product(gate: Float[Tensor, "... F"], up: Float[Tensor, "... F"],
                  activation: Callable[[Tensor], Tensor]) -> Float[Tensor, "... F"]:
    """``activation(gate) * up``; the activation works on each number by itself."""
    return GATED_PRODUCT(GatedProductCall(gate, up, activation))


def _plain(call: GatedProductCall) -> Tensor:
    return call.activation(call.gate) * call.up


def _lean(call: GatedProductCall) -> Tensor:
    y: Tensor = _GatedProduct.apply(*call)  # type: ignore[no-untyped-call]
    return cheap(y, lambda: _product(*call))


def _product(gate: Tensor, up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    active = activation(gate)
    return _times(active, up, fresh=active is not gate)


def _times(x: Tensor, y: Tensor, *, fresh: bool) -> Tensor:
    """x y, in the memory of ``x`` where nothing else needs it: new memory costs as much as the product."""
    return x.mul_(y) if fresh and x.dtype == y.dtype else x * y


@final
class _GatedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(gate, up)
        return _product(gate, up, activation)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        if torch.is_grad_enabled():  # the backward pass is differentiated itself
            return (*again(lambda gate, up: ctx.activation(gate) * up, [gate, up], dy), None)
        with torch.enable_grad():
            leaf = gate.detach().requires_grad_()
            active = ctx.activation(leaf)
        dgate, = torch.autograd.grad(active, leaf, dy * up)
        return dgate, _times(active.detach(), dy, fresh=active is not leaf), None


def _examples(make: Make) -> Iterator[GatedProductCall]:
    for activation in (F.silu, torch.sigmoid, identity):
        yield GatedProductCall(make(2, 3, 5), make(2, 3, 5), activation)


GATED_PRODUCT = OPERATIONS.add(Operation(
    "gated_product", "activation(gate) up",
    Form(REFERENCE, _plain, "activation and product, two operators"),
    Form("lean", _lean, "keeps only its two inputs for backward", gradients="with", compiled=False,
         transformed=False),
    subject="gate", examples=_examples, known_as=("glu", "swiglu")))

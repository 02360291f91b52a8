"""Point-wise non-linearities by name: a closed list.

    identity      x
    relu          max(x, 0)
    squared_relu  max(x, 0)^2                                            So et al. 2021 (Primer), section 4
    gelu          x Phi(x), Phi the normal distribution function         Hendrycks & Gimpel 2016, section 2
    gelu_tanh     x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2        the same, approximated (GPT-1, GPT-2, Gemma)
    quick_gelu    x sigmoid(1.702 x)                                     the same, approximated more coarsely (CLIP)
    clipped_gelu  gelu(x) within [-10, 10]                               Wu et al. 2020 (arXiv:2004.09602), section 5
    silu          x sigmoid(x), also called swish                        Elfwing et al. 2018
    sigmoid       1 / (1 + exp(-x))
    tanh          the hyperbolic tangent
    mish          x tanh(log(1 + exp(x)))                                Misra 2019
    leaky_relu    x, and 0.01 x below 0                                  Maas et al. 2013
    relu6         max(x, 0), at most 6                                   Howard et al. 2017 (MobileNets)
    hard_swish    x relu6(x + 3) / 6                                     Howard et al. 2019, section 5.2
    laplace       (1 + erf((x - mu) / (sigma sqrt(2)))) / 2,             Ma et al. 2022 (Mega), section 3.3
                  mu = sqrt(1/2), sigma = sqrt(1/(4 pi))

"gelu" is always the exact form; several code bases call the tanh form by that name.

f(gate) * up, which keeps only its two inputs for the backward pass: computing f(gate) again costs less than writing
it to memory and reading it back. For the same reason the product itself is `cheap`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError
from torch import Tensor
from torch.nn import functional as F

from weft.core.errors import nearest
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.operator import again, cheap

ActivationName = Literal["identity", "relu", "squared_relu", "gelu", "gelu_tanh", "quick_gelu", "clipped_gelu", "silu",
                         "sigmoid", "tanh", "mish", "leaky_relu", "relu6", "hard_swish", "laplace"]


def identity(x: Tensor) -> Tensor:
    """x itself: a gated unit with it is the bilinear layer."""
    return x


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)^2."""
    return F.relu(x).square()


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


def clipped_gelu(x: Tensor) -> Tensor:
    """gelu(x) within [-10, 10], a range that few bits can hold."""
    return F.gelu(x).clamp(-10.0, 10.0)


def laplace(x: Tensor) -> Tensor:
    """The normal distribution function that is nearest to relu(x)^2 at sqrt(1/2), in value and slope."""
    return 0.5 * (1.0 + torch.erf((x - math.sqrt(0.5)) * math.sqrt(2 * math.pi)))


ACTIVATIONS: Mapping[ActivationName, Callable[[Tensor], Tensor]] = MappingProxyType({
    "identity": identity,
    "relu": F.relu,
    "squared_relu": squared_relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "clipped_gelu": clipped_gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "mish": F.mish,
    "leaky_relu": F.leaky_relu,
    "relu6": F.relu6,
    "hard_swish": F.hardswish,
    "laplace": laplace,
})

KEEP_THEIR_INPUT: frozenset[ActivationName] = frozenset(
    {"gelu", "gelu_tanh", "silu", "mish", "leaky_relu", "relu6", "hard_swish"})
"""Those that keep for their backward pass what they are given, and not what they return."""


def _known(name: Any) -> Any:
    if isinstance(name, str) and name in ACTIVATIONS:
        return name
    raise PydanticCustomError("weft_rule", "{what}", {
        "what": f"no activation is called {name!r}. {nearest(str(name), ACTIVATIONS)}"})


Activation: TypeAlias = Annotated[ActivationName, BeforeValidator(_known)]
"""A configuration field that holds an activation's name; an unknown one is refused with the nearest known."""


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

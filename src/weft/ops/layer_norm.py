"""Layer normalisation of vectors, each by its own mean and variance.

    y = weight (x - mean(x)) / sqrt(var(x) + eps) + bias         var with divisor D
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.operator import widen
from weft.ops.rematerialize import cheap


class LayerNormCall(NamedTuple):
    """The arguments of `layer_norm`."""

    x: Float[Tensor, "... D"]
    weight: Float[Tensor, " D"] | None
    bias: Float[Tensor, " D"] | None
    eps: float


def layer_norm(x: Float[Tensor, "... D"], weight: Float[Tensor, " D"] | None, bias: Float[Tensor, " D"] | None,
               eps: float) -> Float[Tensor, "... D"]:
    """The normalised vectors, worked out in float32 or wider, and rounded once to the dtype of ``x``."""
    return LAYER_NORM(LayerNormCall(x, weight, bias, eps))


def _written_out(call: LayerNormCall) -> Tensor:
    x, weight, bias = (None if each is None else widen(each) for each in call[:3])
    assert x is not None, "the first of the three is the input"
    centred = x - x.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + call.eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).to(call.x.dtype)


def _library(call: LayerNormCall) -> Tensor:
    wide, dtype = widen(call.x), call.x.dtype

    def normalised() -> Tensor:
        weight, bias = (None if each is None else widen(each) for each in (call.weight, call.bias))
        return F.layer_norm(wide, wide.shape[-1:], weight, bias, call.eps).to(dtype)

    return cheap(normalised(), normalised)


def _examples(make: Make) -> Iterator[LayerNormCall]:
    yield LayerNormCall(make(2, 3, 5), make(5), make(5), 1e-5)
    yield LayerNormCall(make(4, 7), None, make(7), 0.5)
    yield LayerNormCall(make(130, 64), make(64), None, 1e-5)
    yield LayerNormCall(make(1, 3), None, None, 1e-5)


LAYER_NORM = OPERATIONS.add(Operation(
    "layer_norm", "weight (x - mean(x)) / sqrt(var(x) + eps) + bias",
    Form(REFERENCE, _written_out, "the formula, operator by operator"),
    # Under torch.func second derivatives of the fused operator are wrong by the weight's (torch 2.13).
    Form("library", _library, "PyTorch's own, fused", transformed=False, known_as=("torch",)),
    subject="x", examples=_examples, known_as=("norm", "layernorm")))

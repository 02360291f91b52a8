"""Layer normalisation of vectors, each by its own mean and variance.

    y = weight (x - mean(x)) / sqrt(var(x) + eps) + bias         var with divisor D
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation
from weft.ops.operator import widen
from weft.ops.rematerialize import cheap


class LayerNormCall(NamedTuple):
    """Vectors to normalise, in float32 or wider; the result is rounded once to the dtype of ``x``."""

    x: Float[Tensor, "... D"]
    weight: Float[Tensor, " D"] | None
    bias: Float[Tensor, " D"] | None
    eps: float


def _written_out(call: LayerNormCall) -> Tensor:
    x, weight, bias = (None if each is None else widen(each) for each in call[:3])
    assert x is not None, "the first of the three is the input"
    centred = x - x.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + call.eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).to(call.x.dtype)


def _library(call: LayerNormCall) -> Tensor:
    x, weight, bias, eps = call
    wide = x if x.dtype == torch.float32 else widen(x)
    weight = weight if weight is None or weight.dtype == torch.float32 else widen(weight)
    bias = bias if bias is None or bias.dtype == torch.float32 else widen(bias)
    y = torch.layer_norm(wide, wide.shape[-1:], weight, bias, eps)
    y = y if y.dtype == x.dtype else y.to(x.dtype)
    if not torch.is_grad_enabled():
        return y
    # The recipe holds what autograd keeps for the backward pass: the wide input, weight and bias.
    return cheap(y, partial(_again, wide, weight, bias, eps, x.dtype))


def _again(wide: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    return torch.layer_norm(wide, (wide.shape[-1],), weight, bias, eps).to(dtype)


def _examples(make: Make) -> Iterator[LayerNormCall]:
    yield LayerNormCall(make(2, 3, 5), make(5), make(5), 1e-5)
    yield LayerNormCall(make(4, 7), None, make(7), 0.5)
    yield LayerNormCall(make(130, 64), make(64), None, 1e-5)
    yield LayerNormCall(make(1, 3), None, None, 1e-5)


LAYER_NORM = OPERATIONS.add(Operation(
    "layer_norm", "weight (x - mean(x)) / sqrt(var(x) + eps) + bias",
    Form(REFERENCE, _written_out, "the formula, operator by operator"),
    LateForm("native", "weft.ops.native_token.LAYER"),
    # Under torch.func second derivatives of the fused operator are wrong by the weight's (torch 2.13).
    Form("library", _library, "PyTorch's own, fused", transformed=False, known_as=("torch",)),
    subject="x", examples=_examples, known_as=("norm", "layernorm")))

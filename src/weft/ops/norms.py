"""Root-mean-square normalisation that keeps for its backward pass only its input and one number a vector.

    y = scale x r,   r = 1 / sqrt(mean(x^2) + eps)
    dx = r (scale dy - n mean(scale dy n)),   dscale = sum over vectors of dy n,   n = x r

On a CPU `torch.nn.functional.rms_norm` is a chain of a dozen operators that keep three copies of x.

Layer normalisation of vectors, each by its own mean and variance.

    y = weight (x - mean(x)) / sqrt(var(x) + eps) + bias         var with divisor D
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from weft.ops.forms import OPERATIONS, REFERENCE, Form, LateForm, Make, Operation
from weft.ops.operator import again, cheap, widen


class RMSNormCall(NamedTuple):
    """The arguments of `rms_norm`."""

    x: Float[Tensor, "... D"]
    scale: Float[Tensor, " D"] | None
    eps: float


def rms_norm(x: Float[Tensor, "... D"], scale: Float[Tensor, " D"] | None, eps: float) -> Float[Tensor, "... D"]:
    """The normalised vectors, computed in the dtype of ``scale`` or in float32 if that is wider, and rounded once to
    the dtype of ``x``."""
    return RMS_NORM(RMSNormCall(x, scale, eps))


def _written_out(call: RMSNormCall) -> Tensor:
    wide = widen(call.x)
    y = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + call.eps)
    return (y if call.scale is None else y * call.scale).to(call.x.dtype)


def _library(call: RMSNormCall) -> Tensor:
    return _plain(call.x, call.scale, call.eps)


def _lean(call: RMSNormCall) -> Tensor:
    y: Tensor = _RMSNorm.apply(*call)  # type: ignore[no-untyped-call]
    return cheap(y, lambda: _normalised(*call)[0])


def _sweep(call: RMSNormCall) -> Tensor:
    return _normalised(*call)[0]


def _normalised(x: Tensor, scale: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised vectors and r."""
    wide = widen(x)
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    floor = torch.full((), eps, dtype=length.dtype, device=length.device)
    r = torch.addcmul(floor, length, length, value=1 / x.shape[-1]).rsqrt_()
    y = wide * r
    y = y if scale is None else y.mul_(scale) if scale.dtype == y.dtype else y * scale
    return y if y.dtype == x.dtype else y.to(x.dtype), r


def _plain(x: Tensor, scale: Tensor | None, eps: float) -> Tensor:
    y: Tensor = F.rms_norm(widen(x), x.shape[-1:], scale, eps)
    return y if y.dtype == x.dtype else y.to(x.dtype)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor | None, eps: float) -> Tensor:
        y, r = _normalised(x, scale, eps)
        ctx.eps = eps
        ctx.save_for_backward(x, scale, r)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, r = ctx.saved_tensors
        if torch.is_grad_enabled():  # the backward pass is differentiated itself: the chain has second derivatives
            return (*again(partial(_plain, eps=ctx.eps), [x, scale], dy), None)
        n, dy = widen(x) * r, widen(dy)
        product = dy * n
        scaled = product.mean(-1) if scale is None else product @ scale.to(product.dtype) / x.shape[-1]
        along = scaled[..., None]
        dx = (dy.clone() if scale is None else dy * scale).addcmul_(n, along, value=-1).mul_(r)
        return dx.to(x.dtype), None if scale is None else product.flatten(0, -2).sum(0), None


def _examples(make: Make) -> Iterator[RMSNormCall]:
    yield RMSNormCall(make(2, 3, 5), make(5), 1e-6)
    yield RMSNormCall(make(4, 7), None, 0.5)
    yield RMSNormCall(make(9, 64), make(64), 1e-6)


RMS_NORM = OPERATIONS.add(Operation(
    "rms_norm", "scale x / sqrt(mean(x^2) + eps)",
    Form(REFERENCE, _written_out, "the formula, operator by operator"),
    LateForm("native", "weft.ops.native_token.RMS"),
    Form("sweep", _sweep, "in place, without a backward pass", devices=frozenset({"cpu"}), gradients="without",
         compiled=False, transformed=False, known_as=("pair",)),
    Form("lean", _lean, "keeps its input and one number per vector", gradients="with", compiled=False,
         transformed=False),
    Form("library", _library, "PyTorch's own", known_as=("torch",)),
    subject="x", examples=_examples, known_as=("norm", "rmsnorm")))


class LayerNormCall(NamedTuple):
    """Vectors to normalise, in float32 or wider; the result is rounded once to the dtype of ``x``."""

    x: Float[Tensor, "... D"]
    weight: Float[Tensor, " D"] | None
    bias: Float[Tensor, " D"] | None
    eps: float


def _written_out_layer_norm(call: LayerNormCall) -> Tensor:
    x, weight, bias = (None if each is None else widen(each) for each in call[:3])
    assert x is not None, "the first of the three is the input"
    centred = x - x.mean(-1, keepdim=True)
    y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + call.eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).to(call.x.dtype)


def _library_layer_norm(call: LayerNormCall) -> Tensor:
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


def _layer_norm_calls(make: Make) -> Iterator[LayerNormCall]:
    yield LayerNormCall(make(2, 3, 5), make(5), make(5), 1e-5)
    yield LayerNormCall(make(4, 7), None, make(7), 0.5)
    yield LayerNormCall(make(130, 64), make(64), None, 1e-5)
    yield LayerNormCall(make(1, 3), None, None, 1e-5)


LAYER_NORM = OPERATIONS.add(Operation(
    "layer_norm", "weight (x - mean(x)) / sqrt(var(x) + eps) + bias",
    Form(REFERENCE, _written_out_layer_norm, "the formula, operator by operator"),
    LateForm("native", "weft.ops.native_token.LAYER"),
    # Under torch.func second derivatives of the fused operator are wrong by the weight's (torch 2.13).
    Form("library", _library_layer_norm, "PyTorch's own, fused", transformed=False, known_as=("torch",)),
    subject="x", examples=_layer_norm_calls, known_as=("norm", "layernorm")))

"""Depthwise causal convolutions of a few taps in C, forward and backward, in float32 on a processor: every number is
read where it lies, [token, channel], where PyTorch's own kernel takes [channel, token] and both have to be copied. The
sources are `weft/ops/native/short_convolution.c` and what it includes. What goes into the silu is not stored: the
backward pass computes it again. """

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.ops.forms import Form
from weft.ops.native.library import ADDRESS, COUNT, run, structure, why_not
from weft.ops.operator import differentiable
from weft.ops.short_convolution import ShortConvolutionCall, by_taps, depthwise, several

TOKENS = 64
"""Of a piece of work; as in native/short_convolution.h."""


_ConvolutionCall = structure(
    (ADDRESS, "x weight bias age y dy dx dweight"), (COUNT, "batch steps channels taps dilation silu next"))
"""`Convolution` of native/short_convolution.h."""


def _run_in_c(name: str, x: Tensor, taps: Tensor, steps: int, dilation: int, age: Tensor | None, silu: bool = False,
              **tensors: Tensor | None) -> None:
    """Run a function of the library on taps [K,D], and on the tokens' ages as C reads them, [B,T]."""
    call = _ConvolutionCall(batch=len(x), steps=steps, channels=x.shape[2], taps=len(taps), dilation=dilation,
                            silu=silu)
    by_row = None if age is None else age[..., 0].expand(len(x), -1).to(torch.int32)
    run(f"weft_short_convolution_{name}", call, x=x, weight=taps, age=by_row, **tensors)


def _steps(inputs: Tensor, weight: Tensor, dilation: int) -> int:
    return inputs.shape[1] - (weight.shape[2] - 1) * dilation


def _run(inputs: Tensor, weight: Tensor, bias: Tensor | None, age: Tensor | None, dilation: int, silu: bool) -> Tensor:
    y = _run_shapes(inputs, weight, bias, age, dilation, silu)
    _run_in_c("forward", inputs, weight[:, 0].t(), y.shape[1], dilation, age, silu, bias=bias, y=y)
    return y


def _run_shapes(inputs: Tensor, weight: Tensor, bias: Tensor | None, age: Tensor | None, dilation: int,
                silu: bool) -> Tensor:
    return inputs.new_empty(len(inputs), _steps(inputs, weight, dilation), inputs.shape[2])


def _run_backward(dy: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None, age: Tensor | None, dilation: int,
                  silu: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of inputs, weight and bias."""
    x, taps, steps = inputs.contiguous(), weight[:, 0].t().contiguous(), dy.shape[1]
    if silu:
        after, dy = dy, dy.new_empty(dy.shape)
        _run_in_c("slope", x, taps, steps, dilation, age, bias=bias, dy=after, y=dy)
    dx, parts = x.new_empty(x.shape), x.new_empty(len(x), -(-steps // TOKENS), len(taps) + 1, x.shape[2])
    _run_in_c("backward", x, taps, steps, dilation, age, dy=dy, dx=dx, dweight=parts)
    sums = parts.sum((0, 1))
    return dx, sums[:-1].t()[:, None], inputs.new_empty(0) if bias is None else sums[-1].clone()


def _plain(inputs: Tensor, weight: Tensor, bias: Tensor | None, age: Tensor | None, dilation: int,
           silu: bool) -> Tensor:
    y = by_taps(inputs, weight, bias, dilation, age)
    return F.silu(y) if silu else y


_FORWARD = differentiable("native_short_convolution", _run, _run_shapes, _run_backward, _plain, 3)


def native_flops(inputs: Tensor, weight: Tensor, bias: Tensor | None, age: Tensor | None, dilation: int,
                 *_: Any) -> int:
    """A product for every tap, token and channel."""
    return 2 * len(inputs) * _steps(inputs, weight, dilation) * weight.numel()


def native_backward_flops(dy: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None, age: Tensor | None,
                          dilation: int, *_: Any) -> int:
    """The gradients of inputs and of taps."""
    return 2 * native_flops(inputs, weight, bias, age, dilation)


def _in_c(call: ShortConvolutionCall) -> Tensor:
    y: Tensor = _FORWARD(call.inputs, call.weight, call.bias, call.age, call.dilation, call.silu)
    return y


def _hindrance(call: ShortConvolutionCall) -> str | None:
    """Why C cannot serve."""
    if not depthwise(call):
        return "taps mix channels"
    if call.steps() == 0 or call.weight.dtype != call.inputs.dtype:
        return "no tokens, or several dtypes"
    return why_not()


FORM: Form[ShortConvolutionCall, Tensor] = Form(
    "native", _in_c, "depthwise, in C", devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}),
    transformed=False, serves=_hindrance, worth=several,
    flops={"weft.native_short_convolution": native_flops,
           "weft.native_short_convolution_backward": native_backward_flops},
    known_as=("c",))
"""Of `weft.ops.short_convolution`."""

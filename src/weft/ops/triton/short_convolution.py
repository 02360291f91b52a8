"""The depthwise short convolution by Triton, forward and backward, on an NVIDIA GPU; sums are in float32.

PyTorch's convolution wants time last and copies the inputs and the outputs to get there; its gradient of depthwise taps
is one sum over all rows and tokens for each number. Here x is read once and y written once: 4 bytes a number forward in
bfloat16. The backward pass reads x and dy, stores the gradient before the silu in their dtype, and reads it for that of
x: 10 bytes, or 8 without a silu. At 3.0 TB/s the least times for 8 rows of 2,048 tokens are 0.03 and 0.08 ms for 1,536
channels, 0.06 and 0.14 ms for 2,560. Sums of taps over segments are added in one order, so that a call gives the same
bits every time. Convolutions that mix channels are matrix products, and stay PyTorch's; so do those of many taps. The
sources are `kernels/short_convolution.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.ops.forms import Form
from weft.ops.operator import differentiable
from weft.ops.short_convolution import ShortConvolutionCall, by_taps, depthwise, several
from weft.ops.triton.library import devices, interpreted, kernels, offer, on_device_of, why_not

MOST = 16
"""Taps, at most: a program has a sum of each in registers in the backward pass."""

SEGMENT = 256
"""Tokens over which a program sums the gradients of taps."""


def _sizes(inputs: Tensor, weight: Tensor, age: Tensor | None, dilation: int, tile: int) -> dict[str, Any]:
    block = 16 if interpreted() else 64 if weight.shape[2] <= 4 else 16
    return {"width": inputs.shape[2], "dilation": dilation, "age_stride": 0 if age is None else age.stride(0),
            "AGES": age is not None, "TAPS": weight.shape[2], "TILE": tile, "BLOCK": block, "num_warps": 4}


def _laid_out(inputs: Tensor, weight: Tensor, bias: Tensor | None, age: Tensor | None) -> list[Any]:
    """As the kernels read them: ages in int32, the same for all rows or not."""
    ages = None if age is None else age[..., 0].to(torch.int32).contiguous().expand(len(inputs), -1)
    return [inputs.contiguous(), weight.contiguous(), None if bias is None else bias.contiguous(), ages]


def _tile(interpreter: int, compiled: int) -> int:
    """Tokens of a tile, a power of two."""
    return interpreter if interpreted() else compiled


def _run(inputs: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, age: Tensor | None,
         silu: bool) -> Tensor:
    inputs, weight, bias, ages = _laid_out(inputs, weight, bias, age)
    y = _shapes(inputs, weight, bias, dilation, age, silu)
    sizes = _sizes(inputs, weight, ages, dilation, _tile(64, 32))
    with on_device_of(inputs):
        kernels("short_convolution").forward[-(-y.shape[2] // sizes["BLOCK"]), -(-y.shape[1] // sizes["TILE"]), len(y)](
            inputs, weight, bias, ages, y, y.shape[1], BIAS=bias is not None, SILU=silu, **sizes)
    return y


def _shapes(inputs: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, age: Tensor | None,
            silu: bool) -> Tensor:
    return inputs.new_empty(len(inputs), inputs.shape[1] - (weight.shape[2] - 1) * dilation, inputs.shape[2])


def _run_backward(dy: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, age: Tensor | None,
                  silu: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of inputs, taps and bias."""
    inputs, weight, bias, ages = _laid_out(inputs, weight, bias, age)
    dy, (rows, steps, width), taps = dy.contiguous(), dy.shape, weight.shape[2]
    before, dx, parts = torch.empty_like(dy) if silu else dy, torch.empty_like(inputs), -(-steps // SEGMENT)
    sums = torch.empty(rows * parts, taps + 1, width, dtype=torch.float32, device=dy.device)
    sizes = _sizes(inputs, weight, ages, dilation, _tile(64, 16))
    blocks, tiles = -(-width // sizes["BLOCK"]), -(-inputs.shape[1] // sizes["TILE"])
    with on_device_of(dy):
        kernels("short_convolution").slopes[blocks, parts, rows](
            dy, inputs, weight, bias, ages, before, sums, steps, SEGMENT, BIAS=bias is not None, SILU=silu, **sizes)
        kernels("short_convolution").backward[blocks, tiles, rows](before, weight, ages, dx, steps, **sizes)
    total = sums.sum(0).to(weight.dtype)
    return dx, total[:taps].t()[:, None], dy.new_empty(0) if bias is None else total[taps].clone()


def _plain(inputs: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, age: Tensor | None,
           silu: bool) -> Tensor:
    y = by_taps(inputs, weight, bias, dilation, age)
    return F.silu(y) if silu else y


_forward = differentiable("triton_short_convolution", _run, _shapes, _run_backward, _plain, 3)


def _convolution(call: ShortConvolutionCall) -> Tensor:
    found: Tensor = _forward(*call)
    return found


def _hindrance(call: ShortConvolutionCall) -> str | None:
    """Why Triton cannot serve."""
    if not depthwise(call):
        return "taps mix channels"
    if call.weight.shape[2] > MOST:
        return f"it has more than {MOST} taps"
    if any(each is not None and each.dtype != call.inputs.dtype for each in (call.weight, call.bias)):
        return "its tensors are of several dtypes"
    return why_not() if call.inputs.numel() and call.steps() else "there are no channels, rows or tokens"


def _flops(inputs: Tensor, weight: Tensor, bias: Tensor | None, dilation: int, *_: Any) -> int:
    """A product and a sum for each tap."""
    return 2 * _shapes(inputs, weight, bias, dilation, None, False).numel() * weight.shape[2]


def _backward_flops(dy: Tensor, inputs: Tensor, weight: Tensor, *_: Any) -> int:
    """Those of the inputs' gradient and of the taps'."""
    return 4 * dy.numel() * weight.shape[2]


FORM: Form[ShortConvolutionCall, Tensor] = Form(
    "triton", _convolution, "tiles of tokens and channels by Triton", devices=devices(),
    dtypes=frozenset({torch.float32, torch.bfloat16}), transformed=False, serves=_hindrance, worth=several,
    offer=offer(), flops={"weft.triton_short_convolution": _flops,
                          "weft.triton_short_convolution_backward": _backward_flops}, known_as=("cuda", "gpu"))
"""Of `weft.ops.short_convolution`."""

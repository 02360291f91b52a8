"""Causal convolution with a kernel as long as the sequence, in O(T log T)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops import native_long_convolution as in_c
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.operator import differentiable


class ConvolutionCall(NamedTuple):
    """The arguments of `fft_convolution`."""

    u: Float[Tensor, "B H T"]
    kernel: Float[Tensor, "H T"]


def _direct(call: ConvolutionCall) -> Tensor:
    u, kernel = call
    steps = u.shape[2]
    lags = torch.arange(steps, device=u.device)[:, None] - torch.arange(steps, device=u.device)
    matrix = kernel[:, lags.clamp(min=0)].masked_fill(lags < 0, 0)  # [H,T,S]
    return torch.einsum("hts,bhs->bht", matrix, u)


def fft_convolution(u: Float[Tensor, "B H T"], kernel: Float[Tensor, "H T"]) -> Float[Tensor, "B H T"]:
    """y_t = sum_{l <= t} k_l u_{t-l}, by the Fourier transform, zero-padded so that nothing wraps around, or, for few
    tokens, term by term in C.

    The error is about machine epsilon times the largest output, not times each output: far smaller ones are lost by
    the transform. Computed in the dtype of ``u``, which must be float32 or float64. One operator to the compiler, which
    generates no code for complex numbers; the backward pass transforms again, so that no spectrum is kept.
    """
    return FFT_CONVOLUTION(ConvolutionCall(u, kernel))


def _operator(call: ConvolutionCall) -> Tensor:
    y: Tensor = _forward(*call)
    return y


def _native(call: ConvolutionCall) -> Tensor:
    return in_c.in_c(call.u.transpose(1, 2), call.kernel, None).transpose(1, 2)


def _in_c(call: ConvolutionCall) -> str | None:
    return in_c.why_no_terms(call.u, call.kernel)


def _long(call: ConvolutionCall) -> str | None:
    return in_c.too_long(call.u.shape[2])


def fourier(size: int, count: int) -> int:
    """Operations of ``count`` complex transforms of ``size``: 5 n log2 n each, the count by which transforms are
    compared (Frigo and Johnson 2005, section 2)."""
    return round(5 * count * size * math.log2(size)) if size > 1 else 0


def _flops(u: Tensor, kernel: Tensor) -> int:
    """Real transforms of B H rows and H kernels, and B H back."""
    return _real_transforms(u, 2 * u.shape[0] + 1)


def _backward_flops(grad: Tensor, u: Tensor, kernel: Tensor) -> int:
    """Transforms of B H gradients, B H rows and H kernels, and B H + H back."""
    return _real_transforms(u, 3 * u.shape[0] + 2)


def _real_transforms(u: Tensor, times: int) -> int:
    """``times`` transforms for each of H channels, zero-padded to twice the tokens."""
    return fourier(transform_size(2 * u.shape[2] - 1), times * u.shape[1]) // 2


def transform_size(least: int) -> int:
    """The smallest 2^a, 3 2^a or 5 2^a that is not below ``least``; other sizes transform more slowly."""
    best = 0
    for odd in (1, 3, 5):
        size = odd
        while size < least:
            size *= 2
        best = size if best == 0 or size < best else best
    return best


def run(u: Tensor, kernel: Tensor) -> Tensor:
    """`fft_convolution` in PyTorch's operators, u [B,H,T], kernel [H,T]."""
    steps = u.shape[2]
    size = transform_size(2 * steps - 1)
    product = torch.fft.rfft(u, n=size) * torch.fft.rfft(kernel, n=size)
    y: Tensor = torch.fft.irfft(product, n=size)
    return y[..., :steps].contiguous()


def _shapes(u: Tensor, kernel: Tensor) -> Tensor:
    return u.new_empty(u.shape)


def run_backward(grad: Tensor, u: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of both, correlations: du_s = sum_t g_t k_{t-s}, dk_l = sum over rows and t of g_t u_{t-l}."""
    steps = u.shape[2]
    size = transform_size(2 * steps - 1)
    spectrum = torch.fft.rfft(grad, n=size)
    grad_u = torch.fft.irfft(spectrum * torch.fft.rfft(kernel, n=size).conj(), n=size)[..., :steps].contiguous()
    together = (spectrum * torch.fft.rfft(u, n=size).conj()).sum(0)
    return grad_u, torch.fft.irfft(together, n=size)[..., :steps].contiguous()


_forward = differentiable("fft_convolution", run, _shapes, run_backward, run, 2)


def _examples(make: Make) -> Iterator[ConvolutionCall]:
    for steps in (1, 6, 33):
        yield ConvolutionCall(make(2, 3, steps), make(3, steps))


FFT_CONVOLUTION = OPERATIONS.add(Operation(
    "fft_convolution", "a causal convolution with a kernel as long as the sequence",
    Form(REFERENCE, _direct, "term by term, in O(T^2)", known_as=("direct",)),
    Form("native", _native, "term by term in C", devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}),
         transformed=False, serves=_in_c, worth=_long, flops=in_c.FLOPS, known_as=("c",)),
    Form("operator", _operator, "FFT, as one operator that keeps no spectrum", transformed=False,
         flops={"weft.fft_convolution": _flops, "weft.fft_convolution_backward": _backward_flops},
         known_as=("transforms",)),
    subject="u", examples=_examples, known_as=("fft", "long_convolution")))

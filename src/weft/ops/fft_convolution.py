"""Causal convolution with a kernel as long as the sequence, in O(T log T)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops.operator import differentiate, operator, transformed


def direct_convolution(u: Float[Tensor, "B H T"], kernel: Float[Tensor, "H T"]) -> Float[Tensor, "B H T"]:
    """y_t = sum_{l <= t} k_l u_{t-l}, term by term: what `fft_convolution` computes, in O(T^2)."""
    steps = u.shape[2]
    lags = torch.arange(steps, device=u.device)[:, None] - torch.arange(steps, device=u.device)
    matrix = kernel[:, lags.clamp(min=0)].masked_fill(lags < 0, 0)  # [H,T,S]
    return torch.einsum("hts,bhs->bht", matrix, u)


def fft_convolution(u: Float[Tensor, "B H T"], kernel: Float[Tensor, "H T"]) -> Float[Tensor, "B H T"]:
    """`direct_convolution` by the Fourier transform, zero-padded so that nothing wraps around.

    The error is about machine epsilon times the largest output, not times each output: far smaller ones are lost.
    Computes in the dtype given, which must be float32 or float64. One operator to the compiler, which makes no code
    for complex numbers; the backward transforms again, so that no spectrum is kept.
    """
    y: Tensor = run(u, kernel) if transformed() else _forward(u, kernel)
    return y


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


def _backward_shapes(grad: Tensor, u: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), kernel.new_empty(kernel.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    # A backward pass that is itself differentiated consists of PyTorch's operators.
    work = run_backward if torch.is_grad_enabled() else _backward
    gradients: tuple[Tensor, Tensor] = work(grad, *ctx.saved_tensors)
    return gradients


_forward = operator("fft_convolution", run, _shapes)
_backward = operator("fft_convolution_backward", run_backward, _backward_shapes)
differentiate("fft_convolution", _gradient, _save)

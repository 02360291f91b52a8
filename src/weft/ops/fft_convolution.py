"""Causal convolution with a kernel as long as the sequence, in O(T log T)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def direct_convolution(u: Float[Tensor, "B H T"], kernel: Float[Tensor, "H T"]) -> Float[Tensor, "B H T"]:
    """y_t = sum_{l <= t} k_l u_{t-l}, term by term: what `fft_convolution` computes, in O(T^2)."""
    steps = u.shape[2]
    lags = torch.arange(steps, device=u.device)[:, None] - torch.arange(steps, device=u.device)
    matrix = kernel[:, lags.clamp(min=0)].masked_fill(lags < 0, 0)  # [H,T,S]
    return torch.einsum("hts,bhs->bht", matrix, u)


def fft_convolution(u: Float[Tensor, "B H T"], kernel: Float[Tensor, "H T"]) -> Float[Tensor, "B H T"]:
    """`direct_convolution` by the Fourier transform, zero-padded so that nothing wraps around.

    The error is about machine epsilon times the largest output, not times each output: far smaller ones are lost.
    Computes in the dtype given, which must be float32 or float64.
    """
    steps = u.shape[2]
    size = transform_size(2 * steps - 1)
    product = torch.fft.rfft(u, n=size) * torch.fft.rfft(kernel, n=size)
    y: Tensor = torch.fft.irfft(product, n=size)
    return y[..., :steps]


def transform_size(least: int) -> int:
    """The smallest 2^a, 3 2^a or 5 2^a that is not below ``least``; other sizes transform more slowly."""
    best = 0
    for odd in (1, 3, 5):
        size = odd
        while size < least:
            size *= 2
        best = size if best == 0 or size < best else best
    return best

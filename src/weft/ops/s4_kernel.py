"""S4's convolution kernel, K_l = C A^l B for l < T, by the generating function at the roots of unity.

With C~ = C (I - A^L) for a length L >= T, the sum over l < L of K_l z^l is C~ (I - A z)^-1 B, and its values at
z = exp(-i theta), theta = 2 pi j / L, are the Fourier transform of K (Gu et al. 2022, appendix C.3). For the bilinear
rule and a diagonal matrix plus one of rank one, the inverse follows from sums over the modes, Cauchy products:

    k(v) = sum over modes, and their conjugates, of v / (i s - lambda c),     s = sin(theta/2), c = cos(theta/2)
    K^ = exp(i theta/2) (k(C~ B) - c k(C~ P) k(P* B) / (1 + c k(P* P)))

where lambda is dt/2 Lambda, and v is multiplied by dt/2. Written with sines and cosines in place of the paper's
2/dt (1 - z) / (1 + z), nothing grows without bound at z = -1. A mode and its conjugate together are a real combination
of c/Z and i s/Z, with Z = |lambda|^2 c^2 - s^2 - 2 i Re(lambda) c s, so all sums are one product of real matrices.

C is the parameter and C~ follows from it at every call, so the kernel may have another length each time; released code
stores C~ of one length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from weft.ops.dense_ssm import Powers
from weft.ops.fft_convolution import fourier, transform_size
from weft.ops.operator import Kernel, again, differentiate, operator
from weft.ops.s4 import Dplr, dense
from weft.ops.s4d import multiply

PIECE = 2**20
"""Modes times frequencies of all channels that the operator computes at once."""


class Coefficients(NamedTuple):
    """What the spectrum follows from.

    Attributes:
        weights: of c/Z and of i s/Z in the four sums, in this order: C~ B, C~ P, P* B, P* P.
        decay: -Re lambda.
        radius: |lambda|.
    """

    weights: Float[Tensor, "H 8 M"]
    decay: Float[Tensor, "H M"]
    radius: Float[Tensor, "H M"]


def coefficients(system: Dplr, size: int) -> Coefficients:
    """Of the kernel of length ``size``."""
    half = (system.dt / 2)[:, None, None]
    known = dense(system)
    rest = known.c - Powers(known).behind(size)  # C (I - A^L) as a real row
    c = torch.stack([rest[:, ::2], -rest[:, 1::2]], -1) / 2
    conjugate = torch.stack([system.p[..., 0], -system.p[..., 1]], -1)
    v = torch.stack([multiply(c, system.b), multiply(c, system.p), multiply(conjugate, system.b),
                     multiply(conjugate, system.p)], 1) * half[:, None]
    decay, turn = (system.modes * half).unbind(-1)
    over_c = 2 * (-v[..., 0] * decay[:, None] - v[..., 1] * turn[:, None])
    return Coefficients(torch.cat([over_c, 2 * v[..., 0]], 1), -decay, (decay.square() + turn.square()).sqrt())


def _half_angles(size: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of theta/2 for the frequencies of a real transform, rounded once."""
    angle = torch.arange(size // 2 + 1, device=like.device, dtype=torch.float64) * (math.pi / size)
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def _inverse(decay: Tensor, radius: Tensor, cos: Tensor, sin: Tensor) -> Complex[Tensor, "H M J"]:
    """1/Z; the difference of squares is a product, since it vanishes where a mode resonates."""
    real = (radius[..., None] * cos - sin) * (radius[..., None] * cos + sin)
    imaginary = 2 * decay[..., None] * (cos * sin)
    below = real.square() + imaginary.square()
    return torch.complex(real / below, -imaginary / below)


def _sums(weights: Tensor, inverse: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
    """The four sums [H,J], complex."""
    products = weights @ torch.cat([inverse.real, inverse.imag], -1)
    real, imaginary = products.chunk(2, -1)
    (a, b), (x, y) = real.chunk(2, 1), imaginary.chunk(2, 1)
    return torch.complex(a * cos - y * sin, x * cos + b * sin).unbind(1)


def _spectrum(weights: Tensor, decay: Tensor, radius: Tensor, cos: Tensor, sin: Tensor) -> Complex[Tensor, "H J"]:
    """The Fourier transform of K at some frequencies."""
    first, left, right, rank = _sums(weights, _inverse(decay, radius, cos, sin), cos, sin)
    return torch.complex(cos, sin) * (first - cos * left * right / (1 + cos * rank))


def cauchy_kernel(system: Dplr, length: int) -> Float[Tensor, "H T"]:
    """K_l for l < length, with N/2 complex numbers for every channel and frequency at once."""
    size = transform_size(length)
    return _whole(*coefficients(system, size), size, length)


def cauchy_kernel_in_pieces(system: Dplr, length: int) -> Float[Tensor, "H T"]:
    """The same as one operator, which computes some frequencies at a time, and again in the backward pass."""
    size = transform_size(length)
    kernel: Tensor = _forward(*coefficients(system, size), size, length)
    return kernel


def _whole(weights: Tensor, decay: Tensor, radius: Tensor, size: int, length: int) -> Tensor:
    spectrum = _spectrum(weights, decay, radius, *_half_angles(size, decay))
    kernel: Tensor = torch.fft.irfft(spectrum, n=size)
    return kernel[:, :length]


def _pieces(size: int, decay: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """The frequencies in pieces, and cos and sin of theta/2 in each."""
    cos, sin = _half_angles(size, decay)
    width = max(1, PIECE // decay.numel())
    for begin in range(0, len(cos), width):
        piece = slice(begin, begin + width)
        yield piece, cos[piece], sin[piece]


def _run(weights: Tensor, decay: Tensor, radius: Tensor, size: int, length: int) -> Tensor:
    found = [_spectrum(weights, decay, radius, cos, sin) for _, cos, sin in _pieces(size, decay)]
    kernel: Tensor = torch.fft.irfft(torch.cat(found, -1), n=size)
    return kernel[:, :length].contiguous()


def _run_shapes(weights: Tensor, decay: Tensor, radius: Tensor, size: int, length: int) -> Tensor:
    return decay.new_empty(decay.shape[0], length)


def _run_backward(grad: Tensor, weights: Tensor, decay: Tensor, radius: Tensor,
                  size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of all three; every piece of the spectrum is computed again."""
    above = torch.fft.rfft(grad, n=size) * (2 / size)
    above[:, 0] /= 2
    if size % 2 == 0:
        above[:, -1] /= 2
    totals = torch.zeros_like(weights), torch.zeros_like(decay), torch.zeros_like(radius)
    for piece, cos, sin in _pieces(size, decay):
        for total, part in zip(totals, _piece_backward(above[:, piece], weights, decay, radius, cos, sin), strict=True):
            total += part
    return totals


def _piece_backward(above: Tensor, weights: Tensor, decay: Tensor, radius: Tensor, cos: Tensor,
                    sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From the gradient of a piece of the spectrum; a gradient of a complex number is that of its real part plus i
    times that of its imaginary part, so that a derivative enters conjugated."""
    inverse = _inverse(decay, radius, cos, sin)
    _, left, right, rank = _sums(weights, inverse, cos, sin)
    scale = 1 / (1 + cos * rank)
    turned = above * torch.complex(cos, -sin)
    to_sums = torch.stack([turned, -turned * (cos * right * scale).conj(), -turned * (cos * left * scale).conj(),
                           turned * (cos * cos * left * right * scale * scale).conj()], 1)
    to_products = torch.cat([to_sums * cos, torch.complex(to_sums.imag * sin, -to_sums.real * sin)], 1)
    flat = torch.cat([to_products.real, to_products.imag], -1)
    to_weights = flat @ torch.cat([inverse.real, inverse.imag], -1).mT
    real, imaginary = (weights.mT @ flat).chunk(2, -1)
    to_z = -torch.complex(real, imaginary) * inverse.square().conj()
    return (to_weights, 2 * (to_z.imag * (cos * sin)).sum(-1),
            2 * radius * (to_z.real * (cos * cos)).sum(-1))


def _backward_shapes(grad: Tensor, weights: Tensor, decay: Tensor, radius: Tensor,
                     size: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(weights), torch.empty_like(decay), torch.empty_like(radius)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.size, ctx.length = inputs
    ctx.save_for_backward(*tensors)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    weights, decay, radius = ctx.saved_tensors
    if torch.is_grad_enabled():  # the backward pass is differentiated itself
        plain = partial(_whole, size=ctx.size, length=ctx.length)
        return *again(plain, (weights, decay, radius), grad), None, None
    work: Kernel = _backward
    return *work(grad, weights, decay, radius, ctx.size), None, None


_forward = operator("s4_spectrum", _run, _run_shapes)
_backward = operator("s4_spectrum_backward", _run_backward, _backward_shapes)
differentiate("s4_spectrum", _gradient, _save)


def spectrum_flops(weights: Tensor, decay: Tensor, radius: Tensor, size: int, length: int) -> int:
    """Eight real sums over the modes of complex numbers for each frequency, and a real transform."""
    return 4 * weights.numel() * (size // 2 + 1) + fourier(size, weights.shape[0]) // 2


def spectrum_backward_flops(grad: Tensor, weights: Tensor, decay: Tensor, radius: Tensor, size: int) -> int:
    """The sums again, and twice as many for the gradients of both factors."""
    return 12 * weights.numel() * (size // 2 + 1) + fourier(size, weights.shape[0]) // 2

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
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from weft.ops.dense_ssm import Powers
from weft.ops.fft_convolution import transform_size
from weft.ops.s4 import Dplr, dense
from weft.ops.s4d import multiply


class Coefficients(NamedTuple):
    """The coefficients from which the spectrum follows.

    Attributes:
        weights: of c/Z and of i s/Z in the four sums, in this order: C~ B, C~ P, P* B, P* P.
        decay: -Re lambda.
        radius: |lambda|.
    """

    weights: Float[Tensor, "H 8 M"]
    decay: Float[Tensor, "H M"]
    radius: Float[Tensor, "H M"]


def coefficients(system: Dplr, size: int) -> Coefficients:
    """The coefficients of the kernel of length ``size``."""
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
    """K_l for l < length, with N/2 complex numbers for every channel and frequency."""
    size = transform_size(length)
    weights, decay, radius = coefficients(system, size)
    kernel: Tensor = torch.fft.irfft(_spectrum(weights, decay, radius, *_half_angles(size, decay)), n=size)
    return kernel[:, :length]

"""Diagonal state-space models: discretisation, powers of modes, and running a chunk from a state.

H channels of N/2 complex modes each, one of every conjugate pair: x' = A x + B u, y = 2 Re(C x). Complex numbers are
pairs of real ones in the last dimension. A discrete mode is kept as log|A| and arg A, so that every power of it is
worked out directly: A^k = exp(k log|A|) (cos(k arg A) + i sin(k arg A)). Powers up to T are products of about
sqrt(T) coarse and sqrt(T) fine ones, so no [H,N/2,T] tensor is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

Discretisation = Literal["zoh", "bilinear"]


@dataclass(frozen=True)
class Modes:
    """A discrete diagonal system.

    Attributes:
        log_radius: log |A|.
        angle: arg A, radians, not reduced.
        b: what an input adds to the state, complex.
        c: what is read from the state, complex.
    """

    log_radius: Float[Tensor, "H M"]
    angle: Float[Tensor, "H M"]
    b: Float[Tensor, "H M 2"]
    c: Float[Tensor, "H M 2"]

    def power(self, exponents: Tensor) -> Float[Tensor, "... H M 2"]:
        """A^k for k [...]."""
        k = exponents.to(self.angle.dtype)[..., None, None]
        size, angle = (k * self.log_radius).exp(), k * self.angle
        return torch.stack([size * angle.cos(), size * angle.sin()], dim=-1)


def multiply(a: Float[Tensor, "*#S 2"], b: Float[Tensor, "*#S 2"]) -> Float[Tensor, "*S 2"]:
    """The product of complex numbers given as pairs."""
    (ar, ai), (br, bi) = a.unbind(-1), b.unbind(-1)
    return torch.stack([ar * br - ai * bi, ar * bi + ai * br], dim=-1)


def discretise(a: Float[Tensor, "H M 2"], b: Float[Tensor, "H M 2"], c: Float[Tensor, "H M 2"],
               dt: Float[Tensor, " H"], method: Discretisation) -> Modes:
    """A step of length dt; Gu et al. 2022b, section 3.1.

    "zoh": A' = exp(dt a), B' = (exp(dt a) - 1) / a b. "bilinear": A' = (1 + dt a/2) / (1 - dt a/2),
    B' = dt b / (1 - dt a/2). Differences of numbers near one are rearranged, for float32 and small steps.
    """
    x, y = (a * dt[:, None, None]).unbind(-1)
    if method == "zoh":
        grown = torch.stack([x.expm1() * y.cos() - 2 * (y / 2).sin() ** 2, x.exp() * y.sin()], dim=-1)  # exp(dt a) - 1
        return Modes(x, y, multiply(_divide(grown, a), b), c)
    below = torch.stack([1 - x / 2, -y / 2], dim=-1)
    log_radius = torch.log1p(2 * x / (below ** 2).sum(-1)) / 2  # |1 + z|^2 - |1 - z|^2 = 4 Re z
    angle = torch.atan2(y / 2, 1 + x / 2) + torch.atan2(y / 2, 1 - x / 2)
    return Modes(log_radius, angle, _divide(b * dt[:, None, None], below), c)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    conjugate = torch.stack([b[..., 0], -b[..., 1]], dim=-1)
    return multiply(a, conjugate) / (b ** 2).sum(-1, keepdim=True)


def read(c: Tensor, state: Tensor) -> Tensor:
    """2 Re(sum over modes of c x)."""
    return 2 * (c[..., 0] * state[..., 0] - c[..., 1] * state[..., 1]).sum(-1)


def blocks_kernel(modes: Modes, length: int) -> Float[Tensor, "H T"]:
    """K_l = 2 Re(sum over modes of C A^l B), from about sqrt(T) powers, twice; Gu et al. 2022b, eq. 6."""
    return _spread(modes, multiply(modes.c, modes.b)[None], length)[0]


def response(modes: Modes, state: Float[Tensor, "B H M 2"], length: int) -> Float[Tensor, "B H T"]:
    """2 Re(sum over modes of C A^{t+1} x): what a state still adds to the outputs after it."""
    ahead = multiply(modes.c, modes.power(state.new_ones(())))
    return _spread(modes, multiply(ahead, state), length)


def absorb(modes: Modes, u: Float[Tensor, "B H T"], state: Float[Tensor, "B H M 2"] | None,
           count: Int64[Tensor, " B"] | None) -> Float[Tensor, "B H M 2"]:
    """The state after ``count`` inputs of each row (None: all T): A^count x + sum over m of A^m B u_{count-1-m}."""
    length = u.shape[2]
    recent = latest_first(u, count)
    size, blocks = _blocks(length)
    fine, coarse = _powers(modes, size, blocks)
    padded = torch.nn.functional.pad(recent, (0, size * blocks - length))
    rows = padded.view(u.shape[0], u.shape[1], blocks, size).transpose(0, 1).flatten(1, 2)  # [H, B blocks, size]
    parts = torch.bmm(rows, fine.permute(1, 0, 2, 3).flatten(2))  # [H, B blocks, M 2]
    parts = parts.view(u.shape[1], u.shape[0], blocks, -1, 2).permute(2, 1, 0, 3, 4)  # [blocks, B, H, M, 2]
    added = multiply(modes.b, multiply(coarse[:, None], parts).sum(0))
    if state is None:
        return added
    passed = torch.full((1,), length, device=u.device) if count is None else count
    return added + multiply(modes.power(passed), state)


def latest_first(u: Tensor, count: Tensor | None) -> Tensor:
    """Each row's inputs in reverse, from its last counted one, zeros after its first."""
    if count is None:
        return u.flip(2)
    place = count[:, None] - 1 - torch.arange(u.shape[2], device=u.device)
    taken = u.gather(2, place.clamp(min=0)[:, None].expand_as(u))
    return taken.masked_fill((place < 0)[:, None], 0)


def _blocks(length: int) -> tuple[int, int]:
    """Size and number of blocks: about the square root each, the size a power of two."""
    size = 1
    while size * size < length:
        size *= 2
    return size, (length + size - 1) // size


def _powers(modes: Modes, size: int, blocks: int) -> tuple[Tensor, Tensor]:
    """A^l for l < size, and A^(size j) for j < blocks."""
    device = modes.angle.device
    return modes.power(torch.arange(size, device=device)), modes.power(torch.arange(blocks, device=device) * size)


def _spread(modes: Modes, coefficients: Float[Tensor, "B H M 2"], length: int) -> Float[Tensor, "B H T"]:
    """2 Re(sum over modes of q A^t) for t < length."""
    batch, channels = coefficients.shape[:2]
    size, blocks = _blocks(length)
    fine, coarse = _powers(modes, size, blocks)
    left = multiply(coefficients[:, None], coarse).permute(2, 0, 1, 3, 4)  # [H, B, blocks, M, 2]
    turned = torch.stack([fine[..., 0], -fine[..., 1]], dim=-1).permute(1, 2, 3, 0)  # [H, M, 2, size]
    rows = torch.bmm(left.flatten(3).flatten(1, 2), turned.flatten(1, 2))
    return 2 * rows.view(channels, batch, blocks * size).transpose(0, 1)[..., :length]

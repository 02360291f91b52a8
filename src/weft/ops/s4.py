"""S4's systems: a diagonal matrix plus one of rank one, discretised by the bilinear rule (Gu et al. 2022, section 3).

H channels of N/2 complex modes each, one of every conjugate pair. With the modes of the other halves, z and its
conjugate,

    z' = Lambda z - P (P* z + conj(P* z)) + B u = Lambda z - 2 P Re(P* z) + B u,   y = 2 Re(C z)

Complex numbers are pairs of real ones in the last dimension. Written as N real numbers the state is a real system whose
matrix has N/2 blocks of 2 by 2 on its diagonal, less 2 p p^T.

With X = dt/2 A the discrete matrix is (I - X)^-1 (I + X) = 2 E - I, and B' = dt E B, where E = (I - X)^-1 follows from
that of the diagonal part, D = (1 - dt/2 Lambda)^-1, by the formula of Sherman, Morrison and Woodbury:

    E w = D w - dt / (1 + dt p^T D p) D p (p^T D w)

which takes O(N) operations.

A chunk of tokens through S4, from a state and across documents.

S4's convolution kernel, K_l = C A^l B for l < T, by the generating function at the roots of unity.

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
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from weft.ops.dense_ssm import DenseSystem, Powers, discretise_dense
from weft.ops.fft_convolution import transform_size
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.s4d import multiply
from weft.ops.ssm_chunk import BY_FFT, Chunk, Inputs, convolved, inputs_for_forms, stepped


class Dplr(NamedTuple):
    """A continuous system for each of H channels. Complex numbers are pairs.

    Attributes:
        modes: Lambda, with negative real parts.
        p: of the matrix of rank one.
        b: what an input adds to the state.
        c: what is read from it.
    """

    modes: Float[Tensor, "H M 2"]
    p: Float[Tensor, "H M 2"]
    b: Float[Tensor, "H M 2"]
    c: Float[Tensor, "H M 2"]
    dt: Float[Tensor, " H"]


class Resolvent(NamedTuple):
    """E = (I - dt/2 A)^-1 in O(N) numbers.

    Attributes:
        diagonal: D.
        turned: D p.
        factor: dt / (1 + dt p^T D p).
    """

    diagonal: Float[Tensor, "H M 2"]
    p: Float[Tensor, "H M 2"]
    turned: Float[Tensor, "H M 2"]
    factor: Float[Tensor, " H"]

    def apply(self, w: Float[Tensor, "B H M 2"]) -> Float[Tensor, "B H M 2"]:
        """E w."""
        turned = multiply(self.diagonal, w)
        along = (self.p * turned).sum((-2, -1)) * self.factor
        return turned - self.turned * along[..., None, None]


def resolvent(system: Dplr) -> Resolvent:
    """The resolvent of a step of the system."""
    step = system.dt[:, None, None]
    real, imaginary = (1 - system.modes[..., 0] * step[..., 0] / 2), -system.modes[..., 1] * step[..., 0] / 2
    diagonal = torch.stack([real, -imaginary], -1) / (real.square() + imaginary.square())[..., None]
    turned = multiply(diagonal, system.p)
    return Resolvent(diagonal, system.p, turned, system.dt / (1 + system.dt * (system.p * turned).sum((-2, -1))))


def advance(system: Dplr, solve: Resolvent, state: Float[Tensor, "B H N"],
            now: Float[Tensor, "B H"]) -> Float[Tensor, "B H N"]:
    """The state after one input, A' x + B' u = E (2 x + dt B u) - x, in O(N)."""
    x: Tensor = state.unflatten(-1, (-1, 2))
    moved = solve.apply(2 * x + (system.b * system.dt[:, None, None]) * now[..., None, None]) - x
    return moved.flatten(-2)


def reading(c: Float[Tensor, "H M 2"]) -> Float[Tensor, "H N"]:
    """The real vector whose product with a state is 2 Re(C z)."""
    return torch.stack([2 * c[..., 0], -2 * c[..., 1]], -1).flatten(-2)


def dense(system: Dplr) -> DenseSystem:
    """The discrete system as real matrices."""
    solve, size = resolvent(system), 2 * system.b.shape[1]
    one = torch.eye(size, dtype=system.b.dtype, device=system.b.device)
    columns = solve.apply(one.view(size, 1, -1, 2)).flatten(-2)  # E e_j [N, H, N]
    added = solve.apply((system.b * system.dt[:, None, None])[None])[0]
    return DenseSystem(2 * columns.permute(1, 2, 0) - one, added.flatten(-2), reading(system.c))


def discretised(system: Dplr) -> DenseSystem:
    """The same from the continuous matrix itself, by an equation solver, without any use of its structure."""
    (real, turn), p = system.modes.unbind(-1), system.p.flatten(-2)
    blocks = torch.stack([torch.stack([real, -turn], -1), torch.stack([turn, real], -1)], -2)  # [H, M, 2, 2]
    one = torch.eye(blocks.shape[1], dtype=p.dtype, device=p.device)
    diagonal = torch.einsum("hmij,mn->hminj", blocks, one).flatten(1, 2).flatten(2, 3)
    a = diagonal - 2 * p[:, :, None] * p[:, None]
    return discretise_dense(a, system.b.flatten(-2), reading(system.c), system.dt, "bilinear")


class S4Call(NamedTuple):
    """One call of at least one token.

    Attributes:
        given: what enters; the state is that of N/2 modes, as pairs in a row.
    """

    given: Inputs
    system: Dplr

    @property
    def x(self) -> Float[Tensor, "B T H"]:
        """The inputs."""
        return self.given.x


def _recurrence(call: S4Call) -> Chunk:
    a, b, c = discretised(call.system)

    def step(state: Tensor, now: Tensor) -> Tensor:
        return torch.einsum("hij,bhj->bhi", a, state) + b * now[..., None]

    return stepped(call.given, step, lambda state: (c * state).sum(-1), b.shape[1])


def _steps(call: S4Call) -> Chunk:
    solve, c = resolvent(call.system), reading(call.system.c)
    return stepped(call.given, lambda state, now: advance(call.system, solve, state, now),
                   lambda state: (c * state).sum(-1), c.shape[1])


def _powers(call: S4Call) -> Chunk:
    powers = Powers(dense(call.system))
    return convolved(call.given, powers.kernel(call.x.shape[1]), lambda: powers, BY_FFT)


def _cauchy(call: S4Call) -> Chunk:
    kernel = cauchy_kernel(call.system, call.x.shape[1])
    return convolved(call.given, kernel, lambda: Powers(dense(call.system)), BY_FFT)


def _one(call: S4Call) -> str | None:
    return None if call.x.shape[1] == 1 else "several tokens"


def _several(call: S4Call) -> str | None:
    return "a single token" if call.x.shape[1] == 1 else None


def _examples(make: Make) -> Iterator[S4Call]:
    modes = torch.stack([-make(3, 2).square() - 0.1, make(3, 2)], -1)
    system = Dplr(modes, make(3, 2, 2), make(3, 2, 2), make(3, 2, 2), make(3).square() + 0.1)
    for given in inputs_for_forms(make, 3, 4):
        yield S4Call(given, system)


S4_CHUNK = OPERATIONS.add(Operation(
    "s4", "a diagonal plus rank-one state-space model over a chunk",
    Form(REFERENCE, _recurrence, "dense matrices, step by step", known_as=("recurrence", "naive")),
    Form("steps", _steps, "diagonal plus rank one, step by step", worth=_one, known_as=("step",)),
    Form("powers", _powers, "FFT, the kernel from dense powers", worth=_several),
    Form("cauchy", _cauchy, "FFT, the kernel from Cauchy products", worth=_several, known_as=("cauchy_at_once",)),
    subject="x", examples=_examples, known_as=("dplr",)))


def coefficients(system: Dplr, size: int) -> tuple[Float[Tensor, "H 8 M"], Float[Tensor, "H M"], Float[Tensor, "H M"]]:
    """The coefficients from which the spectrum of the kernel of length ``size`` follows: the weights of c/Z and of
    i s/Z in the four sums, in this order: C~ B, C~ P, P* B, P* P; and decays and radii."""
    half = (system.dt / 2)[:, None, None]
    known = dense(system)
    rest = known.c - Powers(known).behind(size)  # C (I - A^L) as a real row
    c = torch.stack([rest[:, ::2], -rest[:, 1::2]], -1) / 2
    conjugate = torch.stack([system.p[..., 0], -system.p[..., 1]], -1)
    v = torch.stack([multiply(c, system.b), multiply(c, system.p), multiply(conjugate, system.b),
                     multiply(conjugate, system.p)], 1) * half[:, None]
    decay, turn = (system.modes * half).unbind(-1)
    over_c = 2 * (-v[..., 0] * decay[:, None] - v[..., 1] * turn[:, None])
    return torch.cat([over_c, 2 * v[..., 0]], 1), -decay, (decay.square() + turn.square()).sqrt()


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

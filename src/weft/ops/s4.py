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
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops.dense_ssm import DenseSystem, discretise_dense
from weft.ops.s4d import multiply


class Dplr(NamedTuple):
    """A continuous system for each of H channels. Complex numbers are pairs.

    Attributes:
        modes: Lambda, with negative real parts.
        p: of the matrix of rank one.
        b: what an input adds to the state.
        c: what is read from it.
        dt: length of a step.
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
        p: of the system.
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

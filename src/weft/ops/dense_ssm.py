"""Discrete linear state-space models with dense matrices, x_t = A x_{t-1} + B u_t, y_t = C x_t: H of them side by side.

    y_t = C A^{t+1} x_{-1} + sum over l of K_l u_{t-l},   K_l = C A^l B

Powers of A are products of the squares A, A^2, A^4, ..., so what a chunk of T tokens needs takes about log2 T products
of matrices and no loop over tokens. T powers are about sqrt(T) coarse times sqrt(T) fine ones.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from weft.ops.s4d import latest_first

Method = Literal["bilinear", "zoh"]


class DenseSystem(NamedTuple):
    """A discrete system for each of H channels, all real."""

    a: Float[Tensor, "H N N"]
    b: Float[Tensor, "H N"]
    c: Float[Tensor, "H N"]


def discretise_dense(a: Float[Tensor, "H N N"], b: Float[Tensor, "H N"], c: Float[Tensor, "H N"],
                     dt: Float[Tensor, " H"], method: Method) -> DenseSystem:
    """The continuous system x' = A x + B u, y = C x in steps of length dt.

    "bilinear": A' = (I - dt/2 A)^-1 (I + dt/2 A), B' = (I - dt/2 A)^-1 dt B (Gu et al. 2022, equation 3). "zoh", for an
    input that is constant during a step: A' = exp(dt A), B' = A^-1 (exp(dt A) - I) B, both read off the exponential of
    dt [[A, B], [0, 0]], so that A may be singular.
    """
    size = a.shape[-1]
    step, added = a * dt[:, None, None], (b * dt[:, None])[..., None]
    if method == "bilinear":
        one = torch.eye(size, dtype=a.dtype, device=a.device)
        solved = torch.linalg.solve(one - step / 2, torch.cat([one + step / 2, added], -1))
        return DenseSystem(solved[..., :size], solved[..., size], c)
    block = torch.nn.functional.pad(torch.cat([step, added], -1), (0, 0, 0, 1))
    grown = torch.linalg.matrix_exp(block)
    return DenseSystem(grown[:, :size, :size], grown[:, :size, size], c)


class Powers:
    """A discrete system and the squares of its A, each computed once."""

    def __init__(self, system: DenseSystem) -> None:
        self.system = system
        self._squares = [system.a]

    def square(self, k: int) -> Float[Tensor, "H N N"]:
        """A^(2^k)."""
        while len(self._squares) <= k:
            self._squares.append(self._squares[-1] @ self._squares[-1])
        return self._squares[k]

    def kernel(self, length: int) -> Float[Tensor, "H T"]:
        """K_l = C A^l B for l < length."""
        fine, coarse = _levels(length)
        rows = self._spread(self.system.c[:, None], 0, fine, columns=False)[:, :, 0]
        columns = self._spread(self.system.b[:, None], fine, coarse, columns=True)[:, :, 0]
        return (columns @ rows.mT).flatten(1)[:, :length]

    def behind(self, length: int) -> Float[Tensor, "H N"]:
        """C A^length."""
        found = self.system.c[:, None]
        for k in range(length.bit_length()):
            if length >> k & 1:
                found = found @ self.square(k)
        return found[:, 0]

    def response(self, state: Float[Tensor, "B H N"], length: int) -> Float[Tensor, "B H T"]:
        """C A^{t+1} x for t < length: what a state still adds to the outputs after it."""
        fine, coarse = _levels(length)
        rows = self._spread(self.system.c[:, None], 0, fine, columns=False)[:, :, 0]
        after = state.transpose(0, 1) @ self.square(0).mT
        columns = self._spread(after, fine, coarse, columns=True)  # [H, 2^coarse, B, N]
        found = (columns.flatten(1, 2) @ rows.mT).view(*columns.shape[:3], -1)
        return found.permute(2, 0, 1, 3).flatten(2)[..., :length]

    def absorb(self, u: Float[Tensor, "B H T"], state: Float[Tensor, "B H N"] | None,
               count: Int64[Tensor, " B"] | None) -> Float[Tensor, "B H N"]:
        """The state after ``count`` inputs of each row (None: all T): A^count x + sum over m of A^m B u_{count-1-m}."""
        length = u.shape[2]
        fine, coarse = _levels(length)
        recent = torch.nn.functional.pad(latest_first(u, count), (0, 2 ** (fine + coarse) - length))
        rows: Tensor = recent.transpose(0, 1).unflatten(2, (-1, 2 ** fine))  # [H, B, 2^coarse, 2^fine]
        columns = self._spread(self.system.b[:, None], 0, fine, columns=True)[:, :, 0]
        parts = (rows.flatten(1, 2) @ columns).view(*rows.shape[:3], -1)  # [H, B, 2^coarse, N]
        for level in range(fine, fine + coarse):
            parts = parts[:, :, ::2] + self._times(parts[:, :, 1::2], level)
        added = parts[:, :, 0].transpose(0, 1)
        return added if state is None else added + self._after(state, length, count)

    def _after(self, state: Tensor, length: int, count: Tensor | None) -> Tensor:
        """A^count x [B,H,N], by the bits of each row's count."""
        found = state.transpose(0, 1)
        for k in range(length.bit_length()):
            if count is not None:
                taken = ((count >> k) & 1).bool()[None, :, None]
                found = torch.where(taken, found @ self.square(k).mT, found)
            elif length >> k & 1:
                found = found @ self.square(k).mT
        return found.transpose(0, 1)

    def _times(self, columns: Float[Tensor, "H B J N"], k: int) -> Float[Tensor, "H B J N"]:
        """A^(2^k) x."""
        return (columns.flatten(1, 2) @ self.square(k).mT).view(columns.shape)

    def _spread(self, vectors: Float[Tensor, "H R N"], first: int, levels: int, *,
                columns: bool) -> Float[Tensor, "H J R N"]:
        """A^(j 2^first) x for j < 2^levels where the vectors x are columns, and x A^(j 2^first) where they are rows."""
        found = vectors[:, None]
        for level in range(first, first + levels):
            square = self.square(level)
            further = found.flatten(1, 2) @ (square.mT if columns else square)
            found = torch.cat([found, further.view(found.shape)], 1)
        return found


def _levels(length: int) -> tuple[int, int]:
    """f and c with 2^f 2^c >= length, about equal: how many fine powers, and how many coarse ones."""
    bits = max(length - 1, 0).bit_length()
    return bits - bits // 2, bits // 2

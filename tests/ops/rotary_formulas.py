"""The formulas of rotary embedding as the paper writes them, of one head: queries or keys [T,E], angles [T,E/2] in
radians, and interleaved pairs unless the name says otherwise."""

from __future__ import annotations

import math

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from weft.ops.rotary import naive_matrix


def naive_complex_pairs(x: Float[Tensor, "T E"]) -> Complex[Tensor, "T pairs"]:
    """z_i = x_{2i} + j x_{2i+1}."""
    return torch.complex(x[:, 0::2], x[:, 1::2])


def naive_complex(x: Float[Tensor, "T E"], angles: Float[Tensor, "T pairs"]) -> Complex[Tensor, "T pairs"]:
    """The complex product z e^(j m theta); Su et al. 2021, equation 12."""
    return naive_complex_pairs(x) * torch.polar(torch.ones_like(angles), angles)


def naive_conjugate_pairs(x: Float[Tensor, "T E"], angles: Float[Tensor, "T pairs"]) -> Complex[Tensor, "T E"]:
    """(z e^(j m theta), conj(z) e^(-j m theta)) / sqrt 2, whose complex inner products are the real scores."""
    z = naive_complex(x, angles)
    return torch.cat([z, z.conj()], dim=-1) / math.sqrt(2.0)


def naive_real_part_scores(q: Float[Tensor, "T E"], k: Float[Tensor, "S E"],
                           angles: Float[Tensor, "T S pairs"]) -> Float[Tensor, "T S"]:
    """Re[sum_i q_i conj(k_i) e^(j (m-n) theta_i)]: only the distance enters, nothing is rotated.

    Args:
        q: queries.
        k: keys.
        angles: (m - n) theta_i of each pair of positions; Su et al. 2021, equation 12, function g.
    """
    zq, zk = naive_complex_pairs(q)[:, None], naive_complex_pairs(k)[None]
    return (zq * zk.conj() * torch.polar(torch.ones_like(angles), angles)).sum(-1).real


def naive_matrix_product(x: Float[Tensor, "T E"], angles: Float[Tensor, "T pairs"]) -> Float[Tensor, "T E"]:
    """R_m x_m, row by row; Su et al. 2021, equation 14."""
    return torch.stack([naive_matrix(row) @ features for row, features in zip(angles, x, strict=True)])


def naive_interleaved(x: Float[Tensor, "T E"], angles: Float[Tensor, "T pairs"]) -> Float[Tensor, "T E"]:
    """x cos(m theta) + (-x_1, x_0, -x_3, x_2, ...) sin(m theta), element by element; Su et al. 2021, equation 34."""
    twice = angles.repeat_interleave(2, dim=-1)
    crossed = torch.stack([-x[:, 1::2], x[:, 0::2]], dim=-1).flatten(-2)
    return x * twice.cos() + crossed * twice.sin()


def naive_half_split(x: Float[Tensor, "T E"], angles: Float[Tensor, "T pairs"]) -> Float[Tensor, "T E"]:
    """[x_left | x_right] cos C + [-x_right | x_left] sin C with C = [m theta | m theta]: half-split pairs."""
    left, right = x.chunk(2, dim=-1)
    twice = torch.cat([angles, angles], dim=-1)
    return x * twice.cos() + torch.cat([-right, left], dim=-1) * twice.sin()


def permute_heads(weight: Tensor, n_heads: int, order: list[int]) -> Tensor:
    """The rows of a query or key projection, [n_heads * E, ...] or a bias [n_heads * E], each head's in ``order``.

    With ``half_split_order`` a model of interleaved pairs becomes one of half-split pairs that computes the same
    scores (Meta's Llama files against Hugging Face's), with ``interleaved_order`` the other way round.
    """
    heads = torch.unflatten(weight, 0, (n_heads, -1))
    return heads[:, order].flatten(0, 1)

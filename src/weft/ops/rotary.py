"""Rotary position embedding: its forms, its matrix, and the permutation between its layouts.

    y_m = R_m x_m,   <R_m q, R_n k> = q^T R_(n-m) k              (Su et al. 2021, equations 14 to 16)

R_m turns pair i of the features by the angle m theta_i. Interleaved pairs are (x_0, x_1), (x_2, x_3), ...; half-split
pairs are (x_0, x_{R/2}), (x_1, x_{R/2+1}), ... Where fewer than E features are turned (R < E), the others pass
unchanged. Angles in radians; `cos` and `sin` have one entry a pair, [#B,T,R/2].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops.few_rows import unavailable
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Kernel, Make, Operation
from weft.ops.native_token import DTYPES, by_element, native_rotary, rotary_in_c
from weft.ops.operator import widen

Layout = Literal["interleaved", "half_split"]


class Turns(NamedTuple):
    """The rotations of a chunk's tokens, computed once for all layers by `turns`.

    Attributes:
        cos: of each pair, [#B,T,1,R/2]; of each feature, [#B,T,1,R], where pairs are half-split.
        sin: likewise; minus sin for the first feature of a half-split pair.
        complex: cos + j sin, for interleaved pairs; None for half-split ones.
    """

    cos: Tensor
    sin: Tensor
    layout: Layout
    complex: Tensor | None


def turns(cos: Float[Tensor, "#B T pairs"], sin: Float[Tensor, "#B T pairs"], layout: Layout) -> Turns:
    """The rotations by these angles, in the layout that `turn` reads."""
    cos, sin = cos[:, :, None], sin[:, :, None]
    if layout == "half_split":
        return Turns(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1), layout, None)
    return Turns(cos, sin, layout, torch.complex(cos, sin))


class RotaryCall(NamedTuple):
    """Vectors of which all features are turned; computed in the dtype of cos and rounded to that of x once."""

    x: Float[Tensor, "B T H R"]
    by: Turns


def turn(x: Float[Tensor, "B T H E"], by: Turns) -> Float[Tensor, "B T H E"]:
    """The first R features of every head turned; computed in the dtype of cos and rounded to that of x once, and so is
    the gradient."""
    rot = by.cos.shape[-1] * (1 if by.layout == "half_split" else 2)
    if rot < x.shape[-1]:
        turned, rest = torch.split(x, [rot, x.shape[-1] - rot], dim=-1)
        return torch.cat([turn(turned, by), rest], dim=-1)
    return ROTARY(RotaryCall(x, by))


def rotate(x: Float[Tensor, "B T H E"], cos: Float[Tensor, "#B T pairs"], sin: Float[Tensor, "#B T pairs"],
           layout: Layout) -> Float[Tensor, "B T H E"]:
    """`turn` by angles that are used once."""
    return turn(x, turns(cos, sin, layout))


def _wide(formula: Callable[[Tensor, Turns], Tensor], call: RotaryCall) -> Tensor:
    """The formula in the dtype of cos, and its result, and so its gradient, in that of x."""
    x, by = call
    y = formula(x if x.dtype == by.cos.dtype else x.to(by.cos.dtype), by)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _reference(call: RotaryCall) -> Tensor:
    return _wide(_pairs, call)


def _both_halves(call: RotaryCall) -> Tensor:
    return _wide(_halves, call)


def _by_complex(call: RotaryCall) -> Tensor:
    return _wide(_complex, call)


def _native(call: RotaryCall) -> Tensor:
    y: Tensor = native_rotary(call.x, call.by.cos, call.by.sin, call.by.layout == "interleaved")
    return y


def _by_addresses(call: RotaryCall) -> Tensor:
    return rotary_in_c(call.x, call.by.cos, call.by.sin, call.by.layout == "interleaved")


def _pairs(x: Tensor, by: Turns) -> Tensor:
    """(a cos - b sin, b cos + a sin) of every pair."""
    if by.layout == "half_split":
        (a, b), sin = x.chunk(2, dim=-1), by.sin.chunk(2, dim=-1)[1]
        cos = by.cos.chunk(2, dim=-1)[0]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    a, b = torch.unflatten(x, -1, (-1, 2)).unbind(-1)
    real, imaginary = torch.addcmul(a * by.cos, b, by.sin, value=-1), torch.addcmul(b * by.cos, a, by.sin)
    return torch.stack([real, imaginary], dim=-1).flatten(-2)


def _halves(x: Tensor, by: Turns) -> Tensor:
    return torch.addcmul(x * by.cos, x.roll(x.shape[-1] // 2, -1), by.sin)


def _complex(x: Tensor, by: Turns) -> Tensor:
    assert by.complex is not None, "it serves interleaved pairs"
    return torch.view_as_real(_as_complex(x) * by.complex).flatten(-2)


def _in_c(call: RotaryCall) -> str | None:
    if call.x.shape[1] != 1:
        return "it takes one token of every row"
    if call.by.cos.dtype != torch.float32:
        return "its angles are not in float32"
    return "there is nothing to turn" if call.x.numel() == 0 else unavailable()


def _half_split(call: RotaryCall) -> str | None:
    return None if call.by.layout == "half_split" else "the pairs are interleaved"


def _interleaved(call: RotaryCall) -> str | None:
    return None if call.by.layout == "interleaved" else "the pairs are half-split"


def _examples(make: Make) -> Iterator[RotaryCall]:
    for layout in get_args(Layout):
        for steps in (1, 5):
            angles = widen(make(2, steps, 4))
            yield RotaryCall(make(2, steps, 3, 8), turns(angles.cos(), angles.sin(), layout))


ROTARY = OPERATIONS.add(Operation(
    "rotary", "pairs of features turned by angles",
    Form(REFERENCE, _reference, "real arithmetic, pair by pair"),
    Form("native", _native, "one token, in C", devices=frozenset({"cpu"}), dtypes=DTYPES, gradients="without",
         compiled=False, transformed=False, serves=_in_c, flops={"weft.native_rotary": by_element}, known_as=("c",),
         kernel=Kernel(_by_addresses, "x", "by.cos", "by.sin")),
    Form("halves", _both_halves, "real arithmetic, both halves at once", serves=_half_split),
    Form("complex", _by_complex, "products of complex numbers", compiled=False, serves=_interleaved),
    subject="x", examples=_examples, known_as=("rope", "position")))


def _as_complex(x: Tensor) -> Tensor:
    """Neighbouring features as complex numbers: a view where the memory layout allows one, else of a copy."""
    even = x.storage_offset() % 2 == 0 and x.stride(-1) == 1 and not any(map((1).__and__, x.stride()[:-1]))
    x = x if even else x.clone(memory_format=torch.contiguous_format)
    return torch.view_as_complex(torch.unflatten(x, -1, (-1, 2)))


def half_split_order(rot: int, d_head: int) -> list[int]:
    """p with x_half_split = x_interleaved[p]: the even ones of the ``rot`` turned features, the odd ones, the rest."""
    return [*range(0, rot, 2), *range(1, rot, 2), *range(rot, d_head)]


def interleaved_order(rot: int, d_head: int) -> list[int]:
    """The inverse: p with x_interleaved = x_half_split[p]."""
    half = rot // 2
    return [feature for pair in range(half) for feature in (pair, half + pair)] + list(range(rot, d_head))


def naive_matrix(angles: Float[Tensor, " pairs"]) -> Float[Tensor, "E E"]:
    """R_m: 2 x 2 rotations along the diagonal; Su et al. 2021, equation 15."""
    cos, sin = angles.cos(), angles.sin()
    even = torch.arange(0, 2 * angles.shape[0], 2)
    matrix = angles.new_zeros(2 * angles.shape[0], 2 * angles.shape[0])
    matrix[even, even], matrix[even, even + 1] = cos, -sin
    matrix[even + 1, even], matrix[even + 1, even + 1] = sin, cos
    return matrix

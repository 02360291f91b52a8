"""Rotary positions (RoPE): queries and keys rotated by angles proportional to their positions.

Rotary positions on a grid: each axis turns features of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.config import PartField
from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.ops.rotary import Layout, Turns, turn, turns
from weft.positions.base import Point, PositionConfig, PositionScheme
from weft.positions.coordinates import on_grid, one_dimensional
from weft.positions.frequencies import (
    Constant,
    Frequencies,
    NoScalingConfig,
    RopeScalingConfig,
    angle_dtype,
    base_frequencies,
    pairs,
)
from weft.positions.ntk import DynamicScalingConfig
from weft.positions.yarn import YarnConfig

MOST_ROTARY = 2**16
"""Of a head. Published models turn at most 576 of them, and each pair's frequency is computed one by one."""


@register
class RopeConfig(PositionConfig):
    """Rotary positions.

    Attributes:
        layout: which features make a pair: ``interleaved`` neighbours (Su; GPT-J, Meta's Llama files), or
            ``half_split`` (GPT-NeoX; Llama, Mistral, Qwen as Hugging Face stores them). Models of the two layouts are
            the same up to the order of features in each head.
        base: of the wavelengths, which run from 2 pi to about 2 pi base tokens.
        rot: R, the number of leading features of each head that are rotated; exponents divide by it. Features are
            rotated in pairs, so an odd R is rounded up (GPT-NeoX). None: all.
        scaling: how the frequencies are stretched for longer contexts.
    """

    kind: ClassVar[str] = "rope"
    about = About(
        title="RoPE", source="Su et al. 2021, equations 12 to 16 and 34",
        equation=(r"q'_p = R_p q, \quad k'_p = R_p k, \qquad R_p = \operatorname{diag}_i \begin{pmatrix} \cos p "
                  r"\theta_i & -\sin p \theta_i \\ \sin p \theta_i & \cos p \theta_i \end{pmatrix}, \qquad \theta_i = "
                  r"\text{base}^{-2 i / R}"),
        differs=(("sinusoidal", "turns queries and keys in every layer in place of adding to embeddings once, so "
                                "that scores depend on distances alone."),
                 ("alibi", "changes queries and keys in place of scores.")))
    layout: Layout = "interleaved"
    base: float = Field(default=10000.0, gt=1, allow_inf_nan=False)
    rot: int | None = Field(default=None, gt=0)
    scaling: Annotated[RopeScalingConfig, PartField("rope_scaling")] = NoScalingConfig()

    def build(self, dims: Dims) -> PositionScheme:
        raise dims.problem("", "'rope' rotates queries and keys, so it has no place outside attention.",
                           "Put it in the attention's `position`.")

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> Rope:
        rot = d_head if self.rot is None else self.rot
        if 2 * pairs(rot) > d_head:
            raise dims.problem("rot", f"{rot} rotary features in heads of d_head {d_head}.",
                               f"Give an even number of at most {d_head}, or another d_head.")
        if rot > MOST_ROTARY:
            raise dims.problem("rot", f"{rot:,} rotary features of a head.", f"Give at most {MOST_ROTARY:,}, or more "
                               "and narrower heads.")
        return Rope(self.scaling.frequencies(dims.at("scaling"), rot, self.base), self.layout)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(layout="half_split", base=100.0, rot=3),
                *(cls(rot=4, base=50.0, scaling=scaling) for scaling in (DynamicScalingConfig.examples()[0],
                                                                         YarnConfig.examples()[0]))]


class Rope(PositionScheme):
    """R_m x: pair i of the rotated features turns by the angle m theta_i, so scores depend on m - n alone.

    Angles are computed in float32 (float64 for float64 models) for any dtype of the model, and the product is
    rounded to it once; common implementations round cos and sin first. Positions may be fractional coordinates. One
    call may rotate queries and keys together, as further heads.
    """

    acts_on: ClassVar[frozenset[Point]] = frozenset({"queries_keys"})

    def __init__(self, frequencies: Frequencies, layout: Layout) -> None:
        super().__init__()
        self.frequencies, self.layout = frequencies, layout

    def rotate(self, x: Float[Tensor, "B T H E"], ticks: Ticks) -> Float[Tensor, "B T H E"]:
        """Rotate queries or keys. Raises `UnsupportedError`: for n-dimensional coordinates."""
        dtype = angle_dtype(x)
        return turn(x, ticks.once((self.frequencies.key(), self.layout, dtype), lambda: self._turns(ticks, dtype)))

    def _turns(self, ticks: Ticks, dtype: torch.dtype) -> Turns:
        amplitude = self.frequencies.amplitude
        position = one_dimensional(ticks.position, "rope").to(dtype)
        angles = position[..., None] * self.frequencies.at(ticks, dtype)
        cos, sin = angles.cos(), angles.sin()
        if amplitude != 1.0:
            cos, sin = cos * amplitude, sin * amplitude
        return turns(cos, sin, self.layout)


@register
class AxialRopeConfig(PositionConfig):
    """Rotary positions of n coordinates a token: each axis turns an equal share of a head's pairs of features.

    Attributes:
        grid: sizes of all axes but the first, so that n = 1 + their number. Without coordinates of the call, tokens
            lie on that grid row by row: ``[14]`` for an image of 14 patches a row, ``[14, 14]`` for a film of these.
        first: index of the grid's first token; those before it, such as a class token, lie at the origin.
        base: of the wavelengths along each axis; smaller than for text, since axes are short.
        layout: which features make a pair, as in ``rope``.
    """

    kind: ClassVar[str] = "axial_rope"
    about = About(
        title="axial RoPE", also_called=("rope_2d", "rope_nd"),
        source="Su et al. 2021, section 3.4.1; Heo et al. 2024, section 3.1 (RoPE-Axial)",
        equation=(r"q'_p = R(p_1 \theta) \oplus \cdots \oplus R(p_n \theta)\; q, \qquad \theta_i = \text{base}^{-2 i "
                  r"/ d}"),
        differs=(("rope", "a token has n coordinates, each of which turns its own share of the pairs."),
                 ("axial_sinusoidal", "turns queries and keys in place of adding to embeddings.")))
    grid: tuple[int, ...] = Field(default=(14,), min_length=1)
    first: int = Field(default=0, ge=0)
    base: float = Field(default=100.0, gt=1, allow_inf_nan=False)
    layout: Layout = "interleaved"

    def build(self, dims: Dims) -> PositionScheme:
        raise dims.problem("", "'axial_rope' turns queries and keys, so it has no place outside attention.",
                           "Put it in the attention's `position`.")

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> AxialRope:
        axes = len(self.grid) + 1
        if min(self.grid) < 1:
            raise dims.problem("grid", f"an axis of {min(self.grid)} tokens.", "Give positive sizes.")
        if d_head % (2 * axes):
            raise dims.problem("grid", f"the {d_head} features of a head do not make as many pairs for each of {axes} "
                               "axes.", f"Choose a d_head among the multiples of {2 * axes}.")
        return AxialRope(self, d_head)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(grid=(3,)), cls(grid=(5,), first=1, base=50.0, layout="half_split")]


class AxialRope(PositionScheme):
    """Pair i of axis a turned by the angle p_a theta_i, theta_i = base^(-2i n/d_head).

    Rotations of different axes commute, so scores depend on the differences along each axis alone. The pairs of an axis
    stand together, as in the released code; the paper's formula alternates the axes, which is the same model with
    permuted weights.
    Coordinates may be fractions and may be negative.
    """

    acts_on: ClassVar[frozenset[Point]] = frozenset({"queries_keys"})

    def __init__(self, config: AxialRopeConfig, d_head: int) -> None:
        super().__init__()
        self.grid, self.first, self.layout = config.grid, config.first, config.layout
        self.theta = Constant(base_frequencies(d_head // (len(config.grid) + 1), config.base))

    def declares(self) -> Declared:
        return replace(super().declares(), borders=(math.prod(self.grid),))

    def rotate(self, x: Float[Tensor, "B T H E"], ticks: Ticks) -> Float[Tensor, "B T H E"]:
        """Queries or keys, turned. Raises `InputError`: another number of coordinates."""
        dtype = angle_dtype(x)
        key = (AxialRope, self.grid, self.first, self.theta.key(), self.layout, dtype)
        return turn(x, ticks.once(key, lambda: self._turns(ticks, dtype)))

    def _turns(self, ticks: Ticks, dtype: torch.dtype) -> Turns:
        angles = (self.places(ticks).to(dtype)[..., None] * self.theta.at(dtype)).flatten(-2)
        return turns(angles.cos(), angles.sin(), self.layout)

    def places(self, ticks: Ticks) -> Float[Tensor, "#B T n"]:
        """Return the coordinates of each token: those given to the call, or else those of its index on the grid."""
        return on_grid(ticks, self.grid, self.first, "axial_rope")

"""Rotary positions (RoPE): queries and keys rotated by angles proportional to their positions."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.config import PartField
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.ops.rotary import Layout, Turns, turn, turns
from weft.positions.base import Point, PositionConfig, PositionScheme
from weft.positions.constants import angle_dtype
from weft.positions.coordinates import one_dimensional
from weft.positions.frequencies import Frequencies, NoScalingConfig, RopeScalingConfig, pairs
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
            the same up to `weft.ops.rotary.permute_heads`.
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
        """Rotate queries or keys.

        Raises:
            UnsupportedError: for n-dimensional coordinates.
        """
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

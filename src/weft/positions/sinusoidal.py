"""Sinusoidal positions: fixed sines and cosines added to the embeddings.

Sinusoidal positions on a grid: each axis has features of its own, added to the embeddings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.base import Point, PositionConfig, PositionScheme
from weft.positions.coordinates import on_grid, one_dimensional
from weft.positions.frequencies import Constant, angle_dtype


@register
class SinusoidalConfig(PositionConfig):
    """Fixed sines and cosines, one wavelength for every pair of features, added to embeddings of about the same size.

    The waves have amplitude one, and by default so have embeddings: drawn with standard deviation d_model^-1/2 and
    multiplied by d_model^1/2 (section 3.4 of the paper, and its released code). Embeddings drawn with 0.02 would be
    negligible beside the waves.

    Attributes:
        layout: ``interleaved`` (sin, cos, sin, cos, ...; Vaswani) or ``halves`` (all sines, then all cosines; Marian,
            RoFormer, Transformer-XL, fairseq).
        base: wavelengths run from 2 pi to about 2 pi base tokens.
        exponent: of pair i of d/2: ``vaswani`` 2i/d, or ``fairseq`` i/(d/2 - 1), which reaches 2 pi base exactly.
    """

    kind: ClassVar[str] = "sinusoidal"
    about = About(
        title="sinusoidal positions", source="Vaswani et al. 2017, sections 3.4 and 3.5",
        equation=(r"x_p + PE(p), \qquad PE(p)_{2i} = \sin(p \theta_i), \quad PE(p)_{2i+1} = \cos(p \theta_i), \qquad "
                  r"\theta_i = \text{base}^{-2i/d}"),
        differs=(("learned", "fixed, and without a largest position."), ("rope", "is added to embeddings once.")))
    embedding_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({"scale": "sqrt_width",
                                                                         "std": "inverse_sqrt_width"})
    layout: Literal["interleaved", "halves"] = "interleaved"
    base: float = Field(default=10000.0, gt=1)
    exponent: Literal["vaswani", "fairseq"] = "vaswani"

    def build(self, dims: Dims) -> Sinusoidal:
        pairs, least = dims.d_model // 2, 4 if self.exponent == "fairseq" else 2
        if dims.d_model % 2 or dims.d_model < least:
            raise dims.problem("", f"sinusoidal positions come in pairs of features, d_model is {dims.d_model}.",
                               f"Choose an even d_model of at least {least}.")
        last = pairs - 1 if self.exponent == "fairseq" else pairs
        return Sinusoidal([self.base ** (-i / last) for i in range(pairs)], self.layout)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(layout="halves", base=100.0, exponent="fairseq")]


class Sinusoidal(PositionScheme):
    """x + PE(p), PE(p)[2i] = sin(p theta_i), PE(p)[2i+1] = cos(p theta_i).

    PE(p + k) = M_k PE(p) with a rotation M_k that does not depend on p. Angles are computed in float32 (float64 for
    float64 models) from each call's positions, so there is no table and no maximum length.
    """

    acts_on: ClassVar[frozenset[Point]] = frozenset({"embeddings"})

    def __init__(self, frequencies: list[float], layout: Literal["interleaved", "halves"]) -> None:
        super().__init__()
        self.frequencies, self.layout = Constant(frequencies), layout

    def embed(self, x: Float[Tensor, "B T D"], ticks: Ticks) -> Float[Tensor, "B T D"]:
        return x + self.code(one_dimensional(ticks.position, "sinusoidal"), angle_dtype(x)).to(x.dtype)

    def code(self, position: Tensor, dtype: torch.dtype) -> Tensor:
        """PE of positions [#B,T], [#B,T,D]."""
        angles = position.to(dtype)[..., None] * self.frequencies.at(dtype)
        waves = [angles.sin(), angles.cos()]
        return torch.cat(waves, dim=-1) if self.layout == "halves" else torch.stack(waves, dim=-1).flatten(-2)


@register
class AxialSinusoidalConfig(PositionConfig):
    """Fixed sines and cosines of n coordinates a token: each axis has an equal share of the features.

    Attributes:
        grid: sizes of all axes but the first, so that n = 1 + their number. Without coordinates of the call, tokens
            lie on that grid row by row: ``[14]`` for an image of 14 patches a row.
        first: index of the grid's first token; to those before it, such as a class token, nothing is added.
        base: wavelengths along an axis run from 2 pi to about 2 pi base.
    """

    kind: ClassVar[str] = "axial_sinusoidal"
    about = About(
        also_called=("sinusoidal_2d", "sincos_2d"),
        source="Vaswani et al. 2017, section 3.5, for each axis; Chen et al. 2021 (MoCo v3), section 4.1",
        equation=(r"x + PE(p_1, \ldots, p_n), \qquad \sin(p_a \theta_i),\; \cos(p_a \theta_i), \qquad \theta_i = "
                  r"\text{base}^{-i / k}, \quad k = \frac{d}{2 n}"),
        differs=(("sinusoidal", "a token has n coordinates, each of which fills its own share of the features."),))
    grid: tuple[int, ...] = Field(default=(14,), min_length=1)
    first: int = Field(default=0, ge=0)
    base: float = Field(default=10000.0, gt=1, allow_inf_nan=False)

    def build(self, dims: Dims) -> AxialSinusoidal:
        axes = len(self.grid) + 1
        if min(self.grid) < 1:
            raise dims.problem("grid", f"an axis of {min(self.grid)} tokens.", "Give positive sizes.")
        if dims.d_model % (2 * axes):
            raise dims.problem("grid", f"{dims.d_model} features do not make as many pairs of sine and cosine for each "
                               f"of {axes} axes.", f"Choose a d_model among the multiples of {2 * axes}.")
        return AxialSinusoidal(self, dims.d_model // (2 * axes))

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(grid=(3,)), cls(grid=(2,), first=1, base=100.0)]


class AxialSinusoidal(PositionScheme):
    """x + PE(p_1, ..., p_n): for each axis a in turn sin(p_a theta_i) for all i, then cos(p_a theta_i), with theta_i =
    base^(-i / k) for i = 0 .. k - 1 and k = d_model / (2 n).

    The first axis is that of rows. Released codes agree on sines before cosines and differ in which axis comes first,
    which is the same model with permuted weights.
    """

    acts_on: ClassVar[frozenset[Point]] = frozenset({"embeddings"})

    def __init__(self, config: AxialSinusoidalConfig, pairs: int) -> None:
        super().__init__()
        self.grid, self.first = config.grid, config.first
        self.theta = Constant([config.base ** (-i / pairs) for i in range(pairs)])

    def declares(self) -> Declared:
        return replace(super().declares(), borders=(math.prod(self.grid),))

    def embed(self, x: Float[Tensor, "B T D"], ticks: Ticks) -> Float[Tensor, "B T D"]:
        """Embeddings with positions. Raises `InputError`: another number of coordinates."""
        dtype = angle_dtype(x)
        angles = on_grid(ticks, self.grid, self.first, "axial_sinusoidal").to(dtype)[..., None] * self.theta.at(dtype)
        waves = torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(-2).to(x.dtype)
        if self.first and ticks.coordinates is None:
            waves = torch.where((ticks.position < self.first)[..., None], torch.zeros((), dtype=x.dtype,
                                                                                      device=x.device), waves)
        return x + waves

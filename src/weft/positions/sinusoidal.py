"""Sinusoidal positions: fixed sines and cosines added to the embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.base import Point, PositionConfig, PositionScheme
from weft.positions.constants import Constant, angle_dtype
from weft.positions.coordinates import one_dimensional


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

"""Naive position codes, for study: each shows why a position is not simply a number.

A code of n features is concatenated with the token embedding (``join: concatenate``; the embedding then has n features
fewer, so that a readout cannot be tied to it) or added to it (``join: add``; the code is repeated along the features,
so that feature d gets code d mod n). A code of one feature, added, is the same number in all features, which the first
layer normalisation subtracts: the model then has no positions at all.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.base import Point, PositionConfig, PositionScheme
from weft.positions.coordinates import counted_position, one_dimensional, require_positions
from weft.positions.frequencies import angle_dtype
from weft.positions.regimes import LengthDependent

Join = Literal["add", "concatenate"]


class NaiveCode(PositionScheme):
    """A code of ``features`` numbers for each position, added to the embedding or concatenated with it."""

    acts_on: ClassVar[frozenset[Point]] = frozenset({"embeddings"})

    def __init__(self, config: NaiveConfig, dims: Dims, features: int = 1) -> None:
        super().__init__()
        self.config, self.join = config, config.join
        most = dims.d_model if self.join == "add" else dims.d_model - 1
        if features > most:
            raise dims.problem("", f"a position code of {features} features does not fit into d_model {dims.d_model}.",
                               f"Use at most {most} features, or a greater d_model.")
        self.features, self.repeats = features, math.ceil(dims.d_model / features)

    @property
    def width(self) -> int:
        return self.features if self.join == "concatenate" else 0

    def embed(self, x: Float[Tensor, "B T d"], ticks: Ticks) -> Float[Tensor, "B T D"]:
        code = self.config.code(ticks, angle_dtype(x)).to(x.dtype)
        if self.join == "concatenate":
            return torch.cat([x, code.expand(x.shape[0], -1, -1)], dim=-1)
        return x + code.repeat(1, 1, self.repeats)[..., :x.shape[-1]]


class NaiveConfig(PositionConfig):
    """Base of naive codes. By default token embeddings are then drawn with standard deviation 0.5: codes are of size
    one, and a normalisation over both would make tokens drawn with 0.02 negligible.

    Attributes:
        join: whether the code is added to the embedding by a linear map or concatenated with it.
    """

    embedding_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({"std": 0.5})

    about = About(source="folklore; Vaswani et al. 2017, section 3.5, discusses the choice")
    join: Join = "concatenate"

    @abstractmethod
    def code(self, ticks: Ticks, dtype: torch.dtype) -> Float[Tensor, "#B T features"]:
        """The code of each token's position."""

    def build(self, dims: Dims) -> NaiveCode:
        return NaiveCode(self, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(join="add")]


@register
class IntegerCodeConfig(NaiveConfig):
    """code(p) = p: unbounded, so positions outweigh the tokens."""

    kind: ClassVar[str] = "integer"
    about = replace(NaiveConfig.about,
        equation=r"\operatorname{code}(p) = p",
        differs=(("fraction", "unbounded, and needs no length."), ("sine", "every position has its own number.")))

    def code(self, ticks: Ticks, dtype: torch.dtype) -> Tensor:
        return one_dimensional(ticks.position, "integer").to(dtype)[..., None]


@register
class FractionCodeConfig(NaiveConfig):
    """code(p) = p / (N - 1) in a document of N tokens: bounded, but the size of a step depends on the document."""

    kind: ClassVar[str] = "fraction"
    about = replace(NaiveConfig.about,
        equation=r"\operatorname{code}(p) = \frac{p}{N - 1}",
        differs=(("integer", "bounded by 1, but depends on the document's length, which must be known."),))

    def build(self, dims: Dims) -> NaiveCode:
        return FractionCode(self, dims)

    def code(self, ticks: Ticks, dtype: torch.dtype) -> Tensor:
        position, length = one_dimensional(ticks.position, "fraction"), ticks.length
        inside = position < length
        require_positions(inside if ticks.valid is None else inside | ~ticks.valid,
                          "a position lies beyond the length that its document declares.",
                          "Start the state with the document's length (init_state(horizon=...)).")
        return (position.to(dtype) / (length - 1).clamp(min=1).to(dtype))[..., None]


class FractionCode(LengthDependent, NaiveCode):
    """code(p) = p / (N - 1), 0 for N = 1. N is the length that the document declares (`Ticks.length`)."""

    def regime(self, length: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        return length


@register
class BinaryCodeConfig(NaiveConfig):
    """Binary digits of p: bounded and exact, but neighbours may differ in every digit.

    Attributes:
        digits: number of digits n, the least significant first; the code repeats every 2^n tokens.
    """

    kind: ClassVar[str] = "binary"
    about = replace(NaiveConfig.about,
        equation=(r"\operatorname{code}(p) = \left( \lfloor p / 2^{0} \rfloor \bmod 2,\; \ldots,\; \lfloor p / "
                  r"2^{n-1} \rfloor \bmod 2 \right)"),
        differs=(("integer", "bounded, with a digit for each power of two."),
                 ("sinusoidal", "neighbours may differ in every feature, where sinusoids change smoothly.")))
    digits: int = Field(default=6, gt=0, le=62)

    def build(self, dims: Dims) -> NaiveCode:
        return NaiveCode(self, dims, self.digits)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(digits=3), cls(join="add", digits=4)]

    def code(self, ticks: Ticks, dtype: torch.dtype) -> Tensor:
        places = torch.arange(self.digits, device=ticks.order.device)
        return ((counted_position(ticks, "binary")[..., None] >> places) & 1).to(dtype)


@register
class SineCodeConfig(NaiveConfig):
    """code(p) = sin(omega p): bounded and smooth, but many positions share a value.

    Attributes:
        frequency: omega, in radians per token.
    """

    kind: ClassVar[str] = "sine"
    about = replace(NaiveConfig.about,
        equation=r"\operatorname{code}(p) = \sin(\omega p)",
        differs=(("sinusoidal", "has one wave, so that many positions share a value."), ("integer", "bounded.")))
    frequency: float = Field(default=0.1, gt=0)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(join="add", frequency=1.0)]

    def code(self, ticks: Ticks, dtype: torch.dtype) -> Tensor:
        return (one_dimensional(ticks.position, "sine").to(dtype) * self.frequency).sin()[..., None]

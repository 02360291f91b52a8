"""Learned absolute positions: a table of vectors added to the embeddings."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.clock import Ticks
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.base import Point, PositionConfig, PositionScheme
from weft.positions.coordinates import counted_position, require_positions


@register
class LearnedPositionConfig(PositionConfig):
    """A table with a vector for every position.

    Attributes:
        max_length: positions in the table, in tokens; None: the model's context.
        offset: rows of the table before that of position 0, which only negative coordinates read (OPT: 2, unused;
            RoBERTa: the last of them is that of padding).
        std: standard deviation of the vectors' normal initialisation.
    """

    kind: ClassVar[str] = "learned"
    about = About(
        title="learned positions", source="Radford et al. 2018, section 3.1; Gehring et al. 2017, section 3.1",
        equation="x_p + T_p", differs=(("sinusoidal", "vectors are learned, and end with the table."),))
    max_length: int | None = Field(default=None, gt=0)
    offset: int = Field(default=0, ge=0)
    std: float = Field(default=0.02, gt=0)

    def build(self, dims: Dims) -> LearnedPosition:
        length = dims.context if self.max_length is None else self.max_length
        if length < 1:
            raise dims.problem("max_length", "a table of positions needs a length, and the model declares no context.",
                               "Give max_length, or the model's context.")
        return LearnedPosition(length, dims.d_model, self.std, self.offset)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(max_length=64, std=0.5), cls(max_length=64, offset=2, std=0.5)]


class LearnedPosition(PositionScheme):
    """x + table[offset + p] for p = 0 .. max_length - 1, or for coordinates from -offset on.

    Positions beyond the table, which many implementations read from arbitrary memory or clamp, are an error: an
    exception at the call on the CPU, an asynchronous assertion on other devices and in compiled code.
    """

    acts_on: ClassVar[frozenset[Point]] = frozenset({"embeddings"})

    def __init__(self, length: int, d_model: int, std: float, offset: int = 0) -> None:
        super().__init__()
        self.offset = offset
        self.table = nn.Parameter(torch.empty(offset + length, d_model))
        nn.init.normal_(self.table, std=std)

    @property
    def limit(self) -> int:
        """The most tokens that a document may have."""
        return self.table.shape[0] - self.offset

    def embed(self, x: Float[Tensor, "B T D"], ticks: Ticks) -> Float[Tensor, "B T D"]:
        """Embeddings with positions. Raises `InputError`: the position of a token (padding aside) lies beyond the
        table."""
        position = counted_position(ticks, "learned")
        require_positions(
            (position >= -self.offset) & (position < self.limit),
            f"a position lies outside the table of {self.limit} learned positions, 0 to {self.limit - 1}.",
            f"Give documents of at most {self.limit} tokens, train with a greater max_length, or use a scheme without "
            "a table.")
        return x + F.embedding(position + self.offset if self.offset else position, self.table)

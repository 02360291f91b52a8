"""T5's relative bias: a learned number for each score, by a logarithmic bucket of the distance."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Self

import torch
from jaxtyping import Float, Int64
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.clock import Keys, Ticks
from weft.core.config import rule
from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.base import Point, PositionConfig, PositionScheme
from weft.positions.coordinates import distances


def log_buckets(distance: Int64[Tensor, "..."], buckets: int, longest: int) -> Int64[Tensor, "..."]:
    """Return the bucket of each distance (0 or more, in tokens).

    Each of the first ``buckets``/2 distances has a bucket to itself. The other buckets grow with the logarithm of the
    distance up to ``longest``; all distances from there on share the last. The logarithm is taken in float32 and
    truncated, as in the released code.
    """
    exact = buckets // 2
    far = (distance.float().clamp(min=exact) / exact).log() / math.log(longest / exact) * (buckets - exact)
    return torch.where(distance < exact, distance, (exact + far.long()).clamp(max=buckets - 1))


@register
class T5Config(PositionConfig):
    """Relative bias b[bucket(j - i), h], added to the score of query i and key j in head h.

    T5 has one table for all layers: declare it under ``shared:`` and write ``position: {shared: NAME}`` in each layer.
    Written out in a layer, the scheme has a table for that layer alone.

    Attributes:
        buckets: rows of the table.
        max_distance: distance in tokens from which on all keys share a bucket.
        bidirectional: half of the buckets for later keys, the other half for the key itself and earlier ones (T5's
            encoder); otherwise all are for earlier ones, and later keys share that of distance 0 (its decoder).
        scaled: whether scores are divided by the root of d_head. False, as in T5 itself, is for queries that begin
            smaller by that root, as T5's do and those of Weft's attention do not.
        std: standard deviation of the normal distribution that the table starts from.
    """

    kind: ClassVar[str] = "t5"
    about = About(
        title="T5 bias", also_called=("t5_bias", "relative_attention_bias"),
        source="Raffel et al. 2020, section 2.1, and its released code (relative_position_bucket)",
        equation=r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}} + b_{\operatorname{bucket}(j - i),\, h}",
        differs=(("alibi", "a learned number for each bucket of distances in place of a fixed line."),
                 ("shaw", "the bias does not depend on the query.")))
    buckets: int = Field(default=32, ge=2)
    max_distance: int = Field(default=128, ge=2)
    bidirectional: bool = False
    scaled: bool = True
    std: float = Field(default=0.02, gt=0)

    @model_validator(mode="after")
    def _require_room(self) -> Self:
        least = 4 if self.bidirectional else 2
        if self.buckets % least:
            raise rule("buckets", f"{self.buckets} buckets do not divide into {least} equal parts.",
                       f"Give a multiple of {least}.")
        exact = self.buckets // least
        if self.max_distance <= exact:
            raise rule("max_distance", f"{self.max_distance} tokens leave none for buckets beyond the {exact} with "
                       "one each.", f"Give more than {exact}, or fewer buckets.")
        return self

    def build(self, dims: Dims) -> PositionScheme:
        raise dims.problem("", "'t5' acts on scores, so it has no place outside attention.",
                           "Put it in the attention's `position`.")

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> T5:
        return T5(self, n_heads)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(buckets=8, max_distance=20, scaled=False, std=0.5),
                cls(buckets=8, max_distance=6, bidirectional=True, std=0.5)]


class T5(PositionScheme):
    """The bias, read from a table [buckets, H] by the difference of two positions, so that a packed document has the
    biases that it has alone. The released code takes indices within the row."""

    acts_on: ClassVar[frozenset[Point]] = frozenset({"scores"})
    relative = True

    def __init__(self, config: T5Config, n_heads: int) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Parameter(torch.empty(config.buckets, n_heads))
        nn.init.normal_(self.table, std=config.std)

    def scale(self, d_head: int) -> float | None:
        return None if self.config.scaled else 1.0

    def declares(self) -> Declared:
        return replace(super().declares(), borders=(self.config.max_distance,))

    def bias(self, q: Tensor, k: Tensor, ticks: Ticks, keys: Keys) -> Float[Tensor, "#B H T S"]:
        bucket = self.bucket(distances(ticks, keys, "t5"))
        return F.embedding(bucket, self.table).permute(0, 3, 1, 2).to(q.dtype)

    def bucket(self, distance: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """Return the row of the table for each query position minus key position."""
        buckets, longest = self.config.buckets, self.config.max_distance
        if not self.config.bidirectional:
            return log_buckets(distance.clamp(min=0), buckets, longest)
        half = buckets // 2
        return log_buckets(distance.abs(), half, longest) + half * (distance < 0)

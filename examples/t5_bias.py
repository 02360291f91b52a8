"""A position scheme from outside Weft: a learned bias on each score, by the distance of the two tokens."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from weft.core.clock import Keys, Ticks
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.positions.base import Point, PositionConfig, PositionScheme
from weft.positions.coordinates import one_dimensional


@register
class T5BiasConfig(PositionConfig):
    """b[bucket(i - j), h] on the score of query i and key j in head h: a bucket for each of the ``buckets``/2 smallest
    distances, the others growing with the distance up to ``longest`` tokens, from where on all share the last."""

    kind: ClassVar[str] = "t5_bias"
    source: ClassVar[str] = "Raffel et al. 2020, section 2.1, unidirectional"
    buckets: int = Field(default=32, ge=4)
    longest: int = Field(default=128, ge=4)

    def build(self, dims: Dims) -> PositionScheme:
        raise dims.problem("", "'t5_bias' acts on scores, so it has no place outside attention.",
                           "Put it in the attention's `position`.")

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> T5Bias:
        return T5Bias(self, n_heads)


class T5Bias(PositionScheme):
    """The bias. Scores are not divided by the root of d_head, as in T5."""

    acts_on: ClassVar[frozenset[Point]] = frozenset({"scores"})
    relative = True

    def __init__(self, config: T5BiasConfig, n_heads: int) -> None:
        super().__init__()
        self.config, self.table = config, nn.Embedding(config.buckets, n_heads)

    def scale(self, d_head: int) -> float:
        return 1.0

    def borders(self) -> tuple[int, ...]:
        return (self.config.longest,)

    def bias(self, q: Tensor, k: Tensor, ticks: Ticks, keys: Keys) -> Tensor:
        i, j = (one_dimensional(part.position, "t5_bias") for part in (ticks, keys))
        bucket = self.bucket((i[:, :, None] - j[:, None, :]).clamp(min=0))
        biases: Tensor = self.table(bucket)
        return biases.permute(0, 3, 1, 2).to(q.dtype)

    def bucket(self, distance: Tensor) -> Tensor:
        """The logarithm is taken in float32 and truncated, as in the released code."""
        exact, buckets = self.config.buckets // 2, self.config.buckets
        far = (distance.float().clamp(min=exact) / exact).log() / math.log(self.config.longest / exact)
        large = (exact + (far * (buckets - exact)).long()).clamp(max=buckets - 1)
        return torch.where(distance < exact, distance.long(), large)

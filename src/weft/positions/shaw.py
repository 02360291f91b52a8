"""Shaw's relative positions: a learned vector for each clipped distance, added to keys and to values."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor, nn

from weft.core.clock import Keys, Ticks
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.positions.base import Point, PositionConfig, PositionScheme
from weft.positions.relative import distances, of_pairs


@register
class ShawConfig(PositionConfig):
    """Relative vectors a[clip(j - i, -k, k)] of query i and key j, the same for all heads of a layer.

    Attributes:
        clip: k, in tokens; keys farther away share the vector of distance k.
        values: values have relative vectors too. The weights of all pairs are then made, so that only the reference
            form of attention serves; the paper found no difference without them (section 4.3).
        std: standard deviation of the normal distribution that the vectors start from.
    """

    kind: ClassVar[str] = "shaw"
    source: ClassVar[str] = "Shaw et al. 2018, equations 3 to 5"
    clip: int = Field(default=16, ge=1)
    values: bool = True
    std: float = Field(default=0.02, gt=0)

    def build(self, dims: Dims) -> PositionScheme:
        raise dims.problem("", "'shaw' acts on scores and values, so it has no place outside attention.",
                           "Put it in the attention's `position`.")

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> ShawKeys:
        return (Shaw if self.values else ShawKeys)(self.clip, d_head, self.std)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(clip=3, std=0.5), cls(clip=20, values=False, std=0.5)]


class ShawKeys(PositionScheme):
    """q_i . aK[clip(j - i)] / sqrt(d_head), beside q_i . k_j / sqrt(d_head).

    A query's products with the 2k + 1 vectors are made once and read by distance, so nothing of size T x S x d_head is
    made. Vectors are indexed by position, so documents and coordinates are respected.
    """

    acts_on: ClassVar[frozenset[Point]] = frozenset({"scores"})

    def __init__(self, clip: int, d_head: int, std: float) -> None:
        super().__init__()
        self.clip = clip
        self.keys = nn.Parameter(torch.empty(2 * clip + 1, d_head))
        nn.init.normal_(self.keys, std=std)

    def scale(self, d_head: int) -> float:
        return float(d_head ** -0.5)

    def borders(self) -> tuple[int, ...]:
        return (self.clip,)

    def bias(self, q: Float[Tensor, "B T H E"], k: Tensor, ticks: Ticks, keys: Keys) -> Float[Tensor, "B H T S"]:
        products = torch.einsum("bthe,re->bhtr", q, self.keys) * self.scale(q.shape[3])
        return of_pairs(products, self.row(ticks, keys))

    def row(self, ticks: Ticks, keys: Keys) -> Int64[Tensor, "#B T S"]:
        """Row of the table for each pair: clip(j - i, -k, k) + k."""
        return self.clip - distances(ticks, keys, "shaw").clamp(-self.clip, self.clip)


class Shaw(ShawKeys):
    """The same, and each output the weighted sum of v_j + aV[clip(j - i)]."""

    acts_on: ClassVar[frozenset[Point]] = frozenset({"scores", "values"})

    def __init__(self, clip: int, d_head: int, std: float) -> None:
        super().__init__(clip, d_head, std)
        self.values = nn.Parameter(torch.empty(2 * clip + 1, d_head))
        nn.init.normal_(self.values, std=std)

    def value_terms(self, weights: Float[Tensor, "B H T S"], ticks: Ticks, keys: Keys) -> Float[Tensor, "B T H E"]:
        # In float32, since the outermost rows gather hundreds of small weights.
        wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
        row = self.row(ticks, keys)[:, None].expand(wide.shape)
        sums = wide.new_zeros(*wide.shape[:3], len(self.values)).scatter_add(3, row, wide).to(weights.dtype)
        return torch.einsum("bhtr,re->bthe", sums, self.values)

"""Shaw's relative positions: a learned vector for each clipped distance, added to keys and to values."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor, nn

from weft.core.clock import Keys, Ticks
from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.base import Point, PositionConfig, PositionScheme
from weft.positions.coordinates import distances, of_pairs


@register
class ShawConfig(PositionConfig):
    """Relative vectors a[clip(j - i, -k, k)] of query i and key j, the same for all heads of a layer.

    Attributes:
        max_distance: k, in tokens; keys farther away share the vector of distance k.
        on_values: values have relative vectors too. They need the weights of all pairs, which only the reference form
            of attention makes; the paper measured no loss without them (section 4.3).
        std: standard deviation of the normal distribution that the vectors start from.
    """

    kind: ClassVar[str] = "shaw"
    about = About(
        title="Shaw positions", source="Shaw et al. 2018, equations 3 to 5",
        equation=(r"s_{ij} = \frac{q_i \cdot (k_j + a^K_{j-i})}{\sqrt{E}}, \qquad y_i = \sum_j p_{ij} (v_j + "
                  r"a^V_{j-i}), \qquad a_{d} = a_{\operatorname{clip}(d, -c, c)}"),
        differs=(("t5", "a distance has a vector that meets the query, in place of one number."),
                 ("transformer_xl", "vectors are learned and clipped, and values have them too.")))
    max_distance: int = Field(default=16, ge=1)
    on_values: bool = True
    std: float = Field(default=0.02, gt=0)

    def build(self, dims: Dims) -> PositionScheme:
        raise dims.problem("", "'shaw' acts on scores and values, so it has no place outside attention.",
                           "Put it in the attention's `position`.")

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> ShawKeys:
        return (Shaw if self.on_values else ShawKeys)(self.max_distance, d_head, self.std)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(max_distance=3, std=0.5), cls(max_distance=20, on_values=False, std=0.5)]


class ShawKeys(PositionScheme):
    """q_i . aK[clip(j - i)] / sqrt(d_head), added to q_i . k_j / sqrt(d_head).

    Each query is multiplied with the 2k + 1 vectors once, and the products are read by distance, so no tensor of
    T x S x d_head numbers is made.
    """

    acts_on: ClassVar[frozenset[Point]] = frozenset({"scores"})

    def __init__(self, clip: int, d_head: int, std: float) -> None:
        super().__init__()
        self.clip = clip
        self.keys = nn.Parameter(torch.empty(2 * clip + 1, d_head))
        nn.init.normal_(self.keys, std=std)

    def scale(self, d_head: int) -> float:
        return float(d_head ** -0.5)

    def declares(self) -> Declared:
        return replace(super().declares(), borders=(self.clip,))

    def bias(self, q: Float[Tensor, "B T H E"], k: Tensor, ticks: Ticks, keys: Keys) -> Float[Tensor, "B H T S"]:
        products = torch.einsum("bthe,re->bhtr", q, self.keys) * self.scale(q.shape[3])
        return of_pairs(products, self.row(ticks, keys))

    def row(self, ticks: Ticks, keys: Keys) -> Int64[Tensor, "#B T S"]:
        """Return the row of the table for each query i and key j: clip(j - i, -k, k) + k."""
        return self.clip - distances(ticks, keys, "shaw").clamp(-self.clip, self.clip)


class Shaw(ShawKeys):
    """Relative vectors on keys, as in `ShawKeys`, and on values: outputs are weighted sums of v_j + aV[clip(j - i)]."""

    acts_on: ClassVar[frozenset[Point]] = frozenset({"scores", "values"})

    def __init__(self, clip: int, d_head: int, std: float) -> None:
        super().__init__(clip, d_head, std)
        self.values = nn.Parameter(torch.empty(2 * clip + 1, d_head))
        nn.init.normal_(self.values, std=std)

    def value_terms(self, weights: Float[Tensor, "B H T S"], ticks: Ticks, keys: Keys) -> Float[Tensor, "B T H E"]:
        # The outermost rows sum hundreds of small weights. A GPU adds them one by one in the dtype of the tensor, and
        # in bfloat16 most would be lost; a CPU sums in float32 anyway.
        wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
        row = self.row(ticks, keys)[:, None].expand(wide.shape)
        sums = wide.new_zeros(*wide.shape[:3], len(self.values)).scatter_add(3, row, wide).to(weights.dtype)
        return torch.einsum("bhtr,re->bthe", sums, self.values)

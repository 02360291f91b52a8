"""TUPE: positions score each other by projections of their own, apart from the words."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.clock import Keys, Ticks
from weft.core.config import PartField
from weft.core.part_config import About, Dims, ModuleConfig
from weft.core.registry import register
from weft.linear.linear import Linear
from weft.positions.base import Bias, Content, Point, PositionConfig, PositionScheme
from weft.positions.coordinates import counted_position, require_positions, whole
from weft.positions.position_table import PositionTable


@register
class TupeConfig(PositionConfig):
    """(p_i U_q) (p_j U_k)^T / sqrt(2 d_head), added to content scores with the same divisor (TUPE-A); with
    ``relative``, b_(j - i) is added as well (TUPE-R).

    TUPE has one table and one pair of projections for all layers: declare it under ``shared:`` and write
    ``position: {shared: NAME}`` in each.

    Attributes:
        max_length: positions in the table, in tokens; None: the model's context.
        relative: a scheme that adds to scores by distance alone, such as ``{kind: t5, bidirectional: true}``.
        first_token: ``untied``: for a document's first token ([CLS]) a learned number of each head stands in place of
            these terms, theta_1 where it is the query, theta_2 where it is the key.
        norm: normalises each vector of the table before it is projected (the released code: layernorm).
        bias: the two projections have biases (the released code).
        std: standard deviation of the normal distribution that the vectors start from.
    """

    kind: ClassVar[str] = "tupe"
    about = About(
        title="TUPE", source="Ke et al. 2021, equations 7, 8 and 10",
        equation=r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{2 E}} + \frac{(p_i U_q) \cdot (p_j U_k)}{\sqrt{2 E}} + b_{j-i}",
        differs=(("learned", "positions meet positions in the scores, apart from content, in place of being added "
                             "to it."),
                 ("t5", "scores also depend on absolute positions.")))
    max_length: int | None = Field(default=None, gt=0)
    relative: Annotated[PositionConfig, PartField("position")] | None = None
    first_token: Literal["tied", "untied"] = "tied"
    norm: Annotated[ModuleConfig, PartField("norm", shares=False)] | None = None
    bias: bool = False
    std: float = Field(default=0.02, gt=0)

    def build(self, dims: Dims) -> PositionScheme:
        raise dims.problem("", "'tupe' acts on scores, so it has no place outside attention.",
                           "Put it in the attention's `position`.")

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> Tupe:
        length = dims.context if self.max_length is None else self.max_length
        if length < 1:
            raise dims.problem("max_length", "a table of positions needs a length, and the model declares no context.",
                               "Give max_length, or the model's context.")
        relative = None
        if self.relative is not None:
            relative = self.relative.build_for_heads(dims.at("relative"), n_heads, d_head)
            if relative.acts_on != {"scores"} or not relative.relative:
                raise dims.problem("relative", f"{self.relative.kind!r} does not add to scores by distance alone.",
                                   "Use 't5' or 'alibi', or leave it out.")
        norm = None if self.norm is None else self.norm.build(dims.at("norm"))
        table = PositionTable(length, dims.d_model, self.std, norm)
        return Tupe(table, relative, n_heads, d_head, bias=self.bias, untied=self.first_token == "untied")

    @classmethod
    def examples(cls) -> list[Self]:
        # As long as the rows that the laws run on.
        return [cls(max_length=1024, std=1.0),
                cls.model_validate({"max_length": 1024, "std": 0.5, "first_token": "untied", "norm": "layernorm",
                                    "bias": True, "relative": {"kind": "t5", "buckets": 8, "max_distance": 20,
                                                               "std": 0.5}})]


class Tupe(PositionScheme):
    """The scores of positions, from a table that is projected once a call."""

    acts_on: ClassVar[frozenset[Point]] = frozenset({"scores"})

    def __init__(self, table: PositionTable, relative: PositionScheme | None, n_heads: int, d_head: int, *, bias: bool,
                 untied: bool) -> None:
        super().__init__()
        self.table, self.relation, self.n_heads = table, relative, n_heads
        d_model = table.vectors.shape[1]
        self.q = Linear(d_model, n_heads * d_head, bias=bias)
        self.k = Linear(d_model, n_heads * d_head, bias=bias)
        self.theta = nn.Parameter(torch.zeros(2, n_heads)) if untied else None

    @property
    def limit(self) -> int:
        """The number of tokens of the longest document."""
        return len(self.table.vectors)

    def scale(self, d_head: int) -> float:
        return float((2 * d_head) ** -0.5)

    def prepared(self, content: Content) -> Bias:
        vectors = self.table()
        q, k = (each(vectors).unflatten(-1, (self.n_heads, -1)) for each in (self.q, self.k))
        return partial(self._bias, q * self.scale(q.shape[2]), k)

    def _bias(self, q_p: Float[Tensor, "L H E"], k_p: Float[Tensor, "L H E"], q: Tensor, k: Tensor, ticks: Ticks,
              keys: Keys) -> Float[Tensor, "#B H T S"]:
        i, j = self._positions(ticks, keys)
        scores = torch.einsum("bthe,bshe->bhts", q_p[i], k_p[j])
        if self.relation is not None:
            scores = scores + self.relation.bias(q, k, ticks, keys)
        if self.theta is None:
            return scores
        row, column = self.theta.to(scores.dtype)[:, :, None, None]
        return torch.where((i == 0)[:, None, :, None], row, torch.where((j == 0)[:, None, None, :], column, scores))

    def _positions(self, ticks: Ticks, keys: Keys) -> tuple[Tensor, Tensor]:
        """Return the positions of queries and keys. Slots of a buffer that hold no key get an arbitrary valid one.
        Raises `InputError`: a token that counts stands beyond the table."""
        i = counted_position(ticks, "tupe")
        require_positions((i >= 0) & (i < self.limit),
                          f"a position lies outside tupe's table of {self.limit} positions, 0 to {self.limit - 1}.",
                          f"Give documents of at most {self.limit} tokens, or train with a greater max_length.")
        return i, whole(keys.position, "tupe").clamp(0, self.limit - 1)

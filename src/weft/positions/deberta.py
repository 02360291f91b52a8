"""DeBERTa's disentangled attention: content and distance score each other both ways."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal, Self

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.core.config import PartField
from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.linear.linear import Linear
from weft.positions.base import Bias, Content, Point, PositionConfig, PositionScheme
from weft.positions.coordinates import distances, of_pairs, of_pairs_by_key
from weft.positions.position_table import PositionTable, PositionTableConfig

Terms = Literal["both", "c2p", "p2c"]
Projections = Literal["own", "own_biased", "content"]


def log_position(distance: Int64[Tensor, "..."], span: int, longest: int) -> Int64[Tensor, "..."]:
    """Return the signed bucket of each signed distance, in tokens.

    Up to span/2 the bucket is the distance itself. Beyond, it grows with the logarithm of the distance and reaches
    ``span`` at ``longest``. The logarithm is taken in float32 and rounded up, as in the released code.
    """
    middle = span // 2
    far = distance.abs().clamp(min=middle).float() / middle
    steps = far.log() / math.log((longest - 1) / middle) * (middle - 1)
    bucket = (steps.ceil().long() + middle) * distance.sign()
    return torch.where(distance.abs() <= middle, distance, bucket)


@register
class DebertaConfig(PositionConfig):
    """Scores of content with content, content with position and position with content, divided by sqrt(n d_head), n the
    number of these terms.

    Published models have one table of relative vectors for all layers: declare it under ``shared:``. DeBERTa v1: a
    table of 1024 rows. v2 and v3: 512 rows with ``norm: layernorm``, ``longest: 512``, ``projections: content``.

    Attributes:
        table: relative vectors; half of its rows are the span k.
        max_distance: with logarithmic buckets, the distance in tokens of the last one (v2, v3); None: one row for each
            distance, clipped to k (v1).
        terms: ``c2p``, content to position; ``p2c``, position to content; or both.
        projections: of the relative vectors: ``own`` maps, of which that of queries has a bias (v1); ``own_biased``,
            both with a bias (v2 without shared projections); ``content``: the layer's own of queries and keys.
    """

    kind: ClassVar[str] = "deberta"
    about = About(
        title="DeBERTa positions", also_called=("disentangled",),
        source="He et al. 2021 (DeBERTa), section 3.1, equations 2 to 4; its released code (v1, v2, v3)",
        equation=(r"s_{ij} = \frac{q_i \cdot k_j + q_i \cdot W_k r_{\delta(i,j)} + W_q r_{\delta(j,i)} \cdot "
                  r"k_j}{\sqrt{3 E}}"),
        differs=(("shaw", "queries of content also meet vectors of distances projected as queries, and the "
                          "projections are its own."),
                 ("transformer_xl", "distances have learned vectors in place of sinusoids.")))
    table: Annotated[PositionTableConfig, PartField("position_table")] = PositionTableConfig()
    max_distance: int | None = Field(default=None, ge=3)
    terms: Terms = "both"
    projections: Projections = "own"

    def build(self, dims: Dims) -> PositionScheme:
        raise dims.problem("", "'deberta' acts on scores, so it has no place outside attention.",
                           "Put it in the attention's `position`.")

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> Deberta:
        table = self.table.build(dims.at("table"))
        rows = len(table.vectors)
        if rows % 2:
            raise dims.problem("table", f"{rows} rows are not as many on both sides of a query.",
                               "Give an even number.")
        if self.max_distance is not None and self.max_distance - 1 <= rows // 4:
            raise dims.problem("max_distance", f"{self.max_distance} tokens leave no distance for logarithmic buckets: "
                               f"{rows // 4} have a row each.", f"Give at least {rows // 4 + 2}, or fewer rows.")
        return Deberta(self, table, dims.d_model, n_heads, d_head)

    @classmethod
    def examples(cls) -> list[Self]:
        table = {"kind": PositionTableConfig.kind, "std": 0.5}
        return [cls.model_validate(fields) for fields in (
            {"table": {**table, "rows": 6}},
            {"table": {**table, "rows": 16, "norm": "layernorm"}, "max_distance": 20, "projections": "content"},
            {"table": {**table, "rows": 6}, "terms": "p2c", "projections": "own_biased"})]


class Deberta(PositionScheme):
    """(q_i . K_r[row] + k_j . Q_r[row]) / sqrt(3 d_head), row = clip(i - j + k, 0, 2k - 1), of the projected vectors
    K_r and Q_r.

    For position to content the paper reads the row of j - i. The released code, which this follows, reads the row of
    i - j for both. Each query and each key is multiplied with the 2k vectors once, and the products are read by
    distance.
    """

    acts_on: ClassVar[frozenset[Point]] = frozenset({"scores"})

    def __init__(self, config: DebertaConfig, table: PositionTable, d_model: int, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.config, self.table, self.n_heads, self.span = config, table, n_heads, len(table.vectors) // 2
        own, width = config.projections != "content", n_heads * d_head
        self.k = Linear(d_model, width, bias=config.projections == "own_biased") if own and self._has("c2p") else None
        self.q = Linear(d_model, width) if own and self._has("p2c") else None

    def _has(self, term: Terms) -> bool:
        return self.config.terms in ("both", term)

    def scale(self, d_head: int) -> float:
        return float((d_head * (3 if self.config.terms == "both" else 2)) ** -0.5)

    def declares(self) -> Declared:
        return replace(super().declares(), borders=(self.config.max_distance or self.span,))

    def prepared(self, content: Content) -> Bias:
        vectors = self.table()
        if self.config.projections == "content":
            q, k = content(vectors)
            return partial(self._bias, q if self._has("p2c") else None, k if self._has("c2p") else None)
        q_r, k_r = (None if each is None else each(vectors).unflatten(-1, (self.n_heads, -1))
                    for each in (self.q, self.k))
        return partial(self._bias, q_r, k_r)

    def _bias(self, q_r: Float[Tensor, "R H E"] | None, k_r: Float[Tensor, "R G E"] | None, q: Float[Tensor, "B T H E"],
              k: Float[Tensor, "B S K E"], ticks: Ticks, keys: Keys) -> Float[Tensor, "B H T S"]:
        row, scale = self.row(distances(ticks, keys, "deberta")), self.scale(q.shape[3])
        terms = []
        if k_r is not None:
            products = torch.einsum("btkge,rke->bkgtr", q.unflatten(2, (k_r.shape[1], -1)), k_r).flatten(1, 2)
            terms.append(of_pairs(products * scale, row))
        if q_r is not None:
            of_keys = torch.einsum("bske,rkge->bkgsr", k.to(q.dtype), q_r.unflatten(1, (k.shape[2], -1))).flatten(1, 2)
            terms.append(of_pairs_by_key(of_keys * scale, row))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]

    def row(self, distance: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """Return the row of the table for each query position minus key position."""
        span, longest = self.span, self.config.max_distance
        signed = distance if longest is None else log_position(distance, span, longest)
        return (signed + span).clamp(0, 2 * span - 1)

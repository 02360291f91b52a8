"""A table of position vectors that score terms project: one for all layers where it is shared."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.config import PartField
from weft.core.declarations import Declared
from weft.core.layer import Part
from weft.core.part_config import About, Dims, ModuleConfig
from weft.core.registry import register


@register
class PositionTableConfig(ModuleConfig):
    """A vector of d_model features for each distance, which a position scheme projects (`deberta`).

    Declare it under ``shared:`` to give several layers one table.

    Attributes:
        rows: rows of the table, a vector each.
        norm: normalises each vector before it is projected (DeBERTa v2 and v3: layernorm).
        std: standard deviation of the normal distribution that the vectors start from.
    """

    group: ClassVar[str] = "position_table"
    kind: ClassVar[str] = "position_table"
    about = About(
        source="He et al. 2021 (DeBERTa), section 3.1",
        equation=r"r_{\delta} \in \mathbb{R}^{D}, \qquad \delta = 0, \ldots, n - 1",
        differs=(("learned", "its rows are distances that a scheme of scores projects, in place of positions that "
                             "are added to embeddings."),))
    rows: int = Field(default=512, ge=2)
    norm: Annotated[ModuleConfig, PartField("norm", shares=False)] | None = None
    std: float = Field(default=0.02, gt=0)

    def build(self, dims: Dims) -> PositionTable:
        return PositionTable(self.rows, dims.d_model, self.std,
                             None if self.norm is None else self.norm.build(dims.at("norm")))

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls.model_validate({"rows": 8, "std": 0.5, "norm": "layernorm"})]


class PositionTable(Part):
    """The vectors [rows, D], normalised if the configuration names a norm."""

    def __init__(self, rows: int, d_model: int, std: float, norm: nn.Module | None) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(rows, d_model))
        self.norm = norm
        nn.init.normal_(self.vectors, std=std)

    def declares(self) -> Declared:
        return Declared(holds_table=True)

    def forward(self) -> Float[Tensor, "rows D"]:
        """Return all vectors."""
        if self.norm is None:
            return self.vectors
        normalised: Tensor = self.norm(self.vectors)
        return normalised

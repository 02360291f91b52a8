"""Adaptive embeddings: rare tokens have narrow vectors, and maps bring all vectors to the width of the model."""

from __future__ import annotations

from functools import partial
from typing import Self

from jaxtyping import Float, Int64
from pydantic import Field, model_validator
from torch import Tensor, nn

from weft.core.config import rule
from weft.core.declarations import Declared
from weft.core.part import Part
from weft.core.part_config import Dims, Settings
from weft.linear.linear import Linear, unadapted
from weft.ops.clusters import by_cluster
from weft.ops.embedding import embedding


class ClusterSettings(Settings):
    """Clusters of token ids, which are sorted by falling frequency.

    Attributes:
        cutoffs: the first id of each cluster but the first, increasing, between 0 and the number of ids.
        div_val: the width of cluster i is that of the first one divided by this number to the power i, rounded down
            (4 in both papers).
    """

    cutoffs: tuple[int, ...] = Field(min_length=1)
    div_val: int = Field(default=4, gt=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        require_increasing(self.cutoffs)
        return self


def require_increasing(cutoffs: tuple[int, ...]) -> None:
    """Refuse cutoffs that are not positive and increasing."""
    if any(later <= before for before, later in zip((0, *cutoffs), cutoffs, strict=False)):
        raise rule("cutoffs", f"{list(cutoffs)} do not increase from above 0.",
                   "Give the first id of each cluster but the first, in increasing order.")


def cluster_sizes(cutoffs: tuple[int, ...], dims: Dims) -> list[int]:
    """The number of ids in each cluster. Raises `ConfigError`: a cutoff lies beyond the vocabulary."""
    if cutoffs[-1] >= dims.vocab_size:
        raise dims.problem("cutoffs", f"{cutoffs[-1]} leaves no id for the last cluster of a vocabulary of "
                           f"{dims.vocab_size}.", "Choose cutoffs below the number of ids.")
    ends = (*cutoffs, dims.vocab_size)
    return [end - first for first, end in zip((0, *cutoffs), ends, strict=True)]


def cluster_widths(width: int, cutoffs: tuple[int, ...], div_val: int, dims: Dims) -> list[int]:
    """The number of features of each cluster. Raises `ConfigError`: a cluster would have none."""
    widths = [width // div_val ** index for index in range(len(cutoffs) + 1)]
    if widths[-1] < 1:
        raise dims.problem("div_val", f"{width} features divided by {div_val} to the power {len(cutoffs)} leave none "
                           "for the last cluster.", "Choose a smaller div_val, fewer cutoffs or a larger width.")
    return widths


class AdaptiveEmbedding(Part):
    """e(n) = P_i E_i[n - first_i] for the cluster i that holds the id n.

    E_i [ids, d_i] and P_i [D, d_i] without a bias, with d_i = d_0 // div_val^i (Baevski and Auli 2019, section 3; Dai
    et al. 2019, released code). Every cluster has a P, the first one too, though d_0 may be D. A readout tied to it may
    use the transposes of P, so no rewrite may put anything in the place of these maps.

    Attributes:
        embedding_dim: D, features of its results.
        firsts: the first id of each cluster.
        widths: d_i.
    """

    def __init__(self, settings: ClusterSettings, width: int, narrow: int | None, dims: Dims) -> None:
        super().__init__()
        sizes = cluster_sizes(settings.cutoffs, dims)
        self.num_embeddings, self.embedding_dim, self.firsts = dims.vocab_size, width, (0, *settings.cutoffs)
        self.widths = cluster_widths(width if narrow is None else narrow, settings.cutoffs, settings.div_val, dims)
        self.tables = nn.ModuleList(nn.Embedding(*each) for each in zip(sizes, self.widths, strict=True))
        self.projections = nn.ModuleList(Linear(each, width, bias=False, allows=frozenset()) for each in self.widths)

    def declares(self) -> Declared:
        return Declared(role="embeddings")

    def forward(self, numbers: Int64[Tensor, "*N"]) -> Float[Tensor, "*N D"]:
        """The vectors of these ids. Raises `IndexError`: an id beyond the vocabulary."""
        flat, tables = numbers.flatten(), self.tables
        like: Tensor = tables[0].weight  # type: ignore[assignment]
        maps = [partial(_vectors, table, projection)
                for table, projection in zip(tables, self.projections, strict=True)]
        rows = by_cluster(like.new_empty(len(flat), 0), flat, self.firsts, maps)
        return rows.view(*numbers.shape, self.embedding_dim)


def _vectors(table: nn.Module, projection: nn.Module, rows: Tensor, numbers: Tensor) -> Tensor:
    """Rows of a cluster's table, mapped; the gradient of a plain table is summed in float32 or wider."""
    weight: Tensor = table.weight  # type: ignore[assignment]
    plain = table.training and unadapted(table, nn.Embedding)
    y: Tensor = projection(embedding(numbers, weight) if plain else table(numbers))
    return y

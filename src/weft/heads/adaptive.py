"""Adaptive softmax: the probability of a rare token is that of its cluster times its own in the cluster."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Bool, Float, Int64
from pydantic import Field, model_validator
from torch import Tensor, nn

from weft.core.compiling import Direct
from weft.core.declarations import Declared
from weft.core.errors import UnsupportedError
from weft.core.heads import Readout
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.heads.adaptive_embedding import AdaptiveEmbedding, cluster_sizes, cluster_widths, require_increasing
from weft.heads.readout import ReadoutConfig
from weft.linear.linear import Linear, unadapted
from weft.ops.clusters import ClusterMap, by_cluster, cluster_of
from weft.ops.linear_cross_entropy import CrossEntropy, linear_cross_entropy
from weft.ops.linear_log_prob import linear_log_prob, linear_logits

Which = Literal["none", "tails", "all"]


@register
class AdaptiveReadoutConfig(ReadoutConfig):
    """log p(n) = log softmax(z)[n] in the first cluster, and log softmax(z)[c_1 + i - 1] + log softmax(z_i)[n - c_i] in
    cluster i, with z = [W_0 p_0(h); C p_0(h)], one score for each of the c_1 first ids and one for each further
    cluster, and z_i = W_i p_i(h). The logits are these log-probabilities. Token ids are sorted by falling frequency.

    Attributes:
        cutoffs: c_1, c_2, ...: the first id of each cluster but the first, increasing.
        div_val: W_i has the width of W_0 divided by this number to the power i, rounded down; 1: all have the same.
        d_embedding: the width of W_0, in features; None: d_model.
        projections: which p_i are linear maps without bias though their width is d_model: none of them
            (Transformer-XL with div_val 1), those of all further clusters (the paper, PyTorch), or all of them
            (Transformer-XL). A p_i to another width is a map in any case.
        tied: whether the W_i are the matrices of the token embedding: of an adaptive one with the same clusters, or
            with div_val 1 of a plain one.
        tied_projections: which p_i are the transposes of the adaptive embedding's maps: none, those of all clusters but
            the first (Transformer-XL), or all (Baevski and Auli 2019). They may be shared where the W_i are not.
        bias: whether no z has a bias, z alone (PyTorch's ``head_bias``), or z and all z_i (Transformer-XL).
    """

    kind: ClassVar[str] = "adaptive"
    about = About(
        also_called=("adaptive_softmax", "adaptive_log_softmax"),
        source=("Grave et al. 2017, section 4.2; Baevski and Auli 2019, section 3 (tied); Dai et al. 2019, released "
                "code"),
        equation=(r"\log p(n) = \log \operatorname{softmax}(z)_{c_1 + i - 1} + \log \operatorname{softmax}(z_i)_{n - "
                  r"c_i}, \qquad z_i = W_i\, p_i(h)"),
        differs=(("linear", "rare tokens are reached through the score of their cluster, by narrower matrices."),))

    cutoffs: tuple[int, ...] = Field(min_length=1)
    div_val: int = Field(default=4, ge=1)
    d_embedding: int | None = Field(default=None, gt=0)
    projections: Which = "tails"
    tied: bool = True
    tied_projections: Which = "none"
    bias: Literal["none", "head", "all"] = "none"

    @model_validator(mode="after")
    def _check(self) -> Self:
        require_increasing(self.cutoffs)
        return self

    def build(self, dims: Dims) -> AdaptiveReadout:
        return AdaptiveReadout(self, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(cutoffs=(4, 7), div_val=2, tied=False, bias="all", projections="all"),
                cls(cutoffs=(5,), div_val=1, bias="head", projections="none"),
                cls(cutoffs=(3, 4, 8), div_val=2, d_embedding=9, tied=False)]


class Transposed(Direct):
    """y = x P, with the matrix P [D,d] of a map from d to D features that another part has."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... d"]:
        return x @ self.weight


class AdaptiveReadout(Readout):
    """Probabilities in two levels. `log_prob` and `cross_entropy` compute a cluster's scores for the tokens whose
    target it holds, where sorting them pays; `logits` computes all of them for every token.

    PyTorch's `AdaptiveLogSoftmaxWithLoss` is this one untied, with projections of all clusters but the first.
    Transformer-XL's released PyTorch code takes the scores of clusters in the opposite order, which permutes the rows
    of C; its port to transformers takes them as here.
    """

    def __init__(self, config: AdaptiveReadoutConfig, dims: Dims) -> None:
        super().__init__()
        self.firsts, self.sizes = (0, *config.cutoffs), cluster_sizes(config.cutoffs, dims)
        width = dims.d_model if config.d_embedding is None else config.d_embedding
        self.widths = cluster_widths(width, config.cutoffs, config.div_val, dims)
        source = _embedding_of(config, self.widths, dims) if config.tied else None
        held = source.tables if isinstance(source, AdaptiveEmbedding) else [source] if source is not None else []
        self.tables = nn.ParameterList(self._matrices(config) if source is None else [table.weight for table in held])
        self.projections = nn.ModuleList(_projections(config, self.widths, dims))
        self.clusters = nn.Parameter(torch.empty(len(config.cutoffs), width))
        nn.init.normal_(self.clusters, std=width ** -0.5)
        biased = {"none": 0, "head": self.sizes[0], "all": dims.vocab_size}[config.bias]
        self.bias = nn.Parameter(torch.zeros(biased)) if biased else None
        self.cluster_bias = nn.Parameter(torch.zeros(len(config.cutoffs))) if biased else None

    def declares(self) -> Declared:
        return replace(super().declares(), remarks=(
            "The adaptive softmax is counted for every token with the scores of all ids, as generation needs them. "
            "Training and scoring compute a rare cluster's scores only for tokens whose target it holds, and how many "
            "these are depends on the text; a training step is counted as if clusters were equally frequent.",))

    def log_prob(self, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        first = linear_log_prob(*self._first(h), self._first_targets(targets))
        return first + self._within(h, targets)

    def cross_entropy(self, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"], scored: Bool[Tensor, "B T"], *,
                      smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy | None:
        """The sums of the first softmax, by `linear_cross_entropy`, and of the targets' own clusters. None with label
        smoothing, which needs every token's probability, or if this readout is not `unadapted`. Raises
        `UnsupportedError`: with a z-loss; the logits are log-probabilities, whose log Z is 0."""
        if z_loss:
            raise UnsupportedError("a z-loss keeps log Z near 0, and of an adaptive softmax it is 0 by definition.",
                                   where="training.objective.z_loss", remedy="Set it to 0, or use the linear readout.")
        if smoothing or not unadapted(self, AdaptiveReadout):
            return None
        first = linear_cross_entropy(*self._first(h), self._first_targets(targets), scored)
        within = -torch.where(scored, self._within(h, targets), 0.0)
        assert first.by_row is not None, "the operation gives it"
        by_row = first.by_row + within.detach().sum(-1)
        return CrossEntropy(by_row.sum(), first.loss + within.sum(), by_row)

    def logits(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        x, table, bias = self.projections[0](h), self._table(0), self._bias(0)
        scores = torch.cat([linear_logits(x, table, bias, None),
                            linear_logits(x, self.clusters, self.cluster_bias, None)], -1)
        first = _wide(scores).log_softmax(-1)
        parts = [first[..., :self.sizes[0]]]
        for index, cluster in enumerate(first[..., self.sizes[0]:].split(1, -1), 1):
            own = linear_logits(self.projections[index](h), self._table(index), self._bias(index), None)
            parts.append(cluster + _wide(own).log_softmax(-1))
        return torch.cat(parts, -1).to(h.dtype)

    def _first(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The vectors, matrix and bias of the first softmax, clusters included."""
        bias = None
        if self.bias is not None and self.cluster_bias is not None:
            bias = torch.cat([self.bias[:self.sizes[0]], self.cluster_bias])
        return self.projections[0](h), torch.cat([self._table(0), self.clusters]), bias

    def _first_targets(self, targets: Tensor) -> Tensor:
        """The ids, or the numbers of their clusters' scores."""
        cluster = self.sizes[0] + cluster_of(targets, self.firsts) - 1
        return torch.where(targets < self.sizes[0], targets, cluster)

    def _within(self, h: Tensor, targets: Tensor) -> Tensor:
        """Log-probability of each target in its cluster; 0 in the first."""
        maps: list[ClusterMap] = [
            lambda rows, numbers: rows.new_zeros(len(rows), dtype=torch.promote_types(rows.dtype, torch.float32)),
            *(partial(self._tail, index) for index in range(1, len(self.sizes)))]
        return by_cluster(h.flatten(0, -2), targets.flatten(), self.firsts, maps).view_as(targets)

    def _tail(self, index: int, rows: Tensor, numbers: Tensor) -> Tensor:
        x = self.projections[index](rows)
        return linear_log_prob(x[None], self._table(index), self._bias(index), numbers[None])[0]

    def _table(self, index: int) -> Tensor:
        table: Tensor = self.tables[index if len(self.tables) > 1 else 0]
        return table if len(self.tables) > 1 else table[self.firsts[index]:self.firsts[index] + self.sizes[index]]

    def _bias(self, index: int) -> Tensor | None:
        """The bias of a cluster; None where it has none."""
        if self.bias is None or (index and self.bias.shape[0] == self.sizes[0]):
            return None
        return self.bias[self.firsts[index]:self.firsts[index] + self.sizes[index]]

    def _matrices(self, config: AdaptiveReadoutConfig) -> list[nn.Parameter]:
        """Matrices of its own: one of each cluster, or one of all where they have the same width."""
        shapes = list(zip(self.sizes, self.widths, strict=True))
        shapes = shapes if config.div_val > 1 else [(sum(self.sizes), self.widths[0])]
        return [nn.Parameter(torch.randn(size, width) * width ** -0.5) for size, width in shapes]


def _wide(z: Tensor) -> Tensor:
    return z.to(torch.promote_types(z.dtype, torch.float32))


def _embedding_of(config: AdaptiveReadoutConfig, widths: list[int], dims: Dims) -> AdaptiveEmbedding | nn.Embedding:
    """The token embedding that the readout is tied to. Raises `ConfigError`: it has other clusters or another width."""
    adaptive, plain = dims.clusters, dims.tokens
    if isinstance(adaptive, AdaptiveEmbedding) and config.div_val > 1:
        if (adaptive.firsts[1:], adaptive.widths) == (config.cutoffs, widths):
            return adaptive
        raise dims.problem("tied", f"clusters from {list(config.cutoffs)} of widths {widths}; those of the embedding "
                           f"begin at {list(adaptive.firsts[1:])} and have widths {adaptive.widths}.",
                           "Give both the same cutoffs, div_val and d_embedding, or set tied: false.")
    if config.div_val == 1 and plain is not None and plain.embedding_dim == widths[0]:
        return plain
    wanted = f"plain token embedding of width {widths[0]}" if config.div_val == 1 else "adaptive token embedding"
    raise dims.problem("tied", f"there is no {wanted} to share.", "Give the model's `embedding` the same cutoffs under "
                       "`adaptive` (with div_val 1 the same d_embedding), or set tied: false.")


def _projections(config: AdaptiveReadoutConfig, widths: list[int], dims: Dims) -> list[nn.Module]:
    """p_i of every cluster."""
    found: list[nn.Module] = []
    for index, width in enumerate(widths):
        if _names(config.tied_projections, index):
            source = dims.clusters
            if not isinstance(source, AdaptiveEmbedding) or source.widths != widths:
                raise dims.problem("tied_projections", f"there is no adaptive embedding of widths {widths} whose maps "
                                   "could be shared.", "Leave it out, or give the model's `embedding` such clusters "
                                   "under `adaptive`.")
            weight = source.projections[index].weight
            assert isinstance(weight, nn.Parameter), "no rewrite may change these maps"
            found.append(Transposed(weight))
        elif width != dims.d_model or _names(config.projections, index):
            found.append(Linear(dims.d_model, width, bias=False))
        else:
            found.append(nn.Identity())
    return found


def _names(which: Which, index: int) -> bool:
    """Whether a field names a cluster."""
    return which == "all" or (which == "tails" and index > 0)

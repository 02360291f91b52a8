"""`PositionScheme`: where and how positions enter a model.

A scheme acts at up to four points and is the identity at the others:

* on embeddings, once, before the first block (`embed`): learned, sinusoidal, naive codes;
* on queries and keys, before the keys are stored (`rotate`): RoPE and its scalings;
* on scores, after scaling (`bias`): ALiBi, T5, Shaw, Transformer-XL, DeBERTa, TUPE;
* on values (`value_terms`): Shaw.

Schemes depend on positions (`Ticks.position`, `Keys.position`), and masks on the tokens' order. Each scheme has its own
projections and scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias, final

import torch
from torch import Tensor, nn

from weft.core.clock import OWN, Keys, Ticks
from weft.core.declarations import Declared
from weft.core.layer import Part
from weft.core.part_config import About, Dims, ModuleConfig
from weft.core.registry import register
from weft.masks.visible import Grid, Parts, keys_at, picked, ticks_at
from weft.ops.attention import ScoreTerm, slid

Point = Literal["embeddings", "queries_keys", "scores", "values"]

POINTS: Mapping[Point, str] = MappingProxyType({"embeddings": "embeddings", "queries_keys": "queries and keys",
                                                "scores": "scores", "values": "values"})
"""The names of the points in prose, in the order in which a model reaches them."""

Bias: TypeAlias = Callable[[Tensor, Tensor, Ticks, Keys], Tensor]
"""`PositionScheme.bias`, or a function of the same signature that uses results prepared once for the call."""

Content: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The queries [N,H,E] and keys [N,K,E] that an attention layer projects from vectors [N,D]."""


class PositionScheme(Part):
    """Base of position schemes; subclasses override the points that ``acts_on`` names."""

    acts_on: ClassVar[frozenset[Point]] = frozenset()

    def declares(self) -> Declared:
        return Declared(role="positions", holds_table=True)

    @property
    def relative(self) -> bool:
        """Whether `bias` depends on the difference of the two positions alone, so that it is computed once for each
        distance rather than for each pair."""
        return False

    @property
    def width(self) -> int:
        """Number of features that `embed` concatenates; the token embedding is narrower by this number."""
        return 0

    @property
    def limit(self) -> int | None:
        """The maximum number of tokens of a document; None if there is none."""
        return None

    def embed(self, x: Tensor, ticks: Ticks) -> Tensor:
        """Return embeddings [B,T,D - width] with positions, as [B,T,D]."""
        return x

    def rotate(self, x: Tensor, ticks: Ticks) -> Tensor:
        """Return queries or keys [B,T,H,E] rotated according to their own positions."""
        return x

    def scale(self, d_head: int) -> float | None:
        """Return the factor on q.k that the scheme prescribes; None keeps that of the attention layer."""
        return None

    def bias(self, q: Tensor, k: Tensor, ticks: Ticks, keys: Keys) -> Tensor:
        """Return the term added to the scaled scores, [#B,H,T,S]. Each entry must depend on its own query and key only,
        since the term is also computed for subsets.

        Args:
            q: projected queries [B,T,H,E].
            k: projected keys [B,S,K,E].
            ticks: order and positions of the queries: whole numbers [#B,T] unless the call gives coordinates, which may
                be fractions or [B,T,n]. A scheme that does not compute with those refuses them
                (`weft.positions.coordinates`).
            keys: order and positions of the keys.
        """
        raise NotImplementedError(f"{type(self).__name__} acts on scores and does not implement bias")

    def prepared(self, content: Content) -> Bias:
        """Return `bias` for one call. A scheme that projects vectors projects them here, once for all blocks of scores.

        Args:
            content: the projections of the attention layer, for schemes that share them.
        """
        return self.bias

    def value_terms(self, weights: Tensor, ticks: Ticks, keys: Keys) -> Tensor | None:
        """Return the term added to the attention's output, [B,T,H,E], from its weights [B,H,T,S]; None for no term."""
        return None


class PositionConfig(ModuleConfig):
    """Base of position scheme configurations. ``dims.d_model`` is the model's width; schemes inside attention are
    built by `build_for_heads` instead."""

    group: ClassVar[str] = "position"

    embedding_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Defaults that this scheme sets for fields of the model's ``embedding``, used where the configuration leaves them
    out."""

    @final
    @classmethod
    def acts(cls) -> str:
        """Where in a model the scheme acts, and how often, in words."""
        built = [config.build_for_heads(Dims(8, 11, 32), 2, 4) for config in cls.examples()]
        points = [words for point, words in POINTS.items() if any(point in scheme.acts_on for scheme in built)]
        if not points:
            return "nowhere"
        where, learns = " and ".join(points), any(parameter.requires_grad for parameter in built[0].parameters())
        if where == POINTS["embeddings"]:
            return f"{where}, once"
        weights = " (one set of weights each, or one for all under `shared`)" if learns else ""
        return f"{where}, in every layer{weights}"

    def build(self, dims: Dims) -> PositionScheme:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> PositionScheme:
        """Build the scheme for an attention layer with ``n_heads`` query heads of size ``d_head``."""
        return self.build(dims)


def least_limit(module: nn.Module) -> int | None:
    """Return the maximum number of tokens of a document under all position schemes in ``module``, without those of an
    encoder beside a decoder; None if there is none."""
    limits, waiting = list[int](), [module]
    while waiting:
        each = waiting.pop()
        if isinstance(each, PositionScheme) and each.limit is not None:
            limits.append(each.limit)
        for child in each.children():
            if not (isinstance(child, Part) and child.declares().own_law):
                waiting.append(child)
    return min(limits, default=None)


class PositionTerm(ScoreTerm):
    """The term that a position scheme adds to the scores of a call.

    Args:
        scheme: a scheme that acts on scores.
        q: queries [B,T,H,E].
        k: keys [B,S,K,E].
        ticks: order and positions of the queries.
        keys: order and positions of the keys.
        bias: the scheme's bias as prepared for the call; None: `PositionScheme.bias` itself.
    """

    def __init__(self, scheme: PositionScheme, q: Tensor, k: Tensor, ticks: Ticks, keys: Keys,
                 bias: Bias | None = None) -> None:
        self.q, self.k, self.ticks, self.keys = q, k, ticks, keys
        self.bias = scheme.bias if bias is None else bias
        # Only if the keys are the chunk's own tokens without coordinates: their distances are differences of orders.
        self.by_distance = scheme.relative and keys.layout == OWN and ticks.coordinates is None
        learned = any(parameter.requires_grad for parameter in scheme.parameters())
        self.learns = torch.is_grad_enabled() and (learned or (not scheme.relative and (q.requires_grad or
                                                                                       k.requires_grad)))

    def dense(self) -> Tensor:
        steps, keys = self.q.shape[1], self.k.shape[1]
        if self.by_distance and steps > 1:
            return slid(self.distances(1 - steps, steps + keys - 1), steps, keys)
        return self.bias(self.q, self.k, self.ticks, self.keys)

    def at(self, queries: slice, keys: Parts) -> Tensor:
        return self.bias(self.q[:, queries], picked(self.k, 1, keys), ticks_at(self.ticks, queries),
                         keys_at(self.keys, keys))

    def same(self, grid: Grid) -> Tensor | None:
        if not self.by_distance or grid.first:
            return None
        return slid(self.distances(2 - grid.size - grid.rows, grid.rows + grid.width - 1), grid.rows, grid.width)

    def distances(self, least: int, count: int) -> Tensor:
        order = torch.arange(count, device=self.ticks.order.device)[None]
        zero = torch.zeros_like(order[:, :1])
        ticks = Ticks(zero - least, zero, zero, zero + count, None, None, packed=False)
        return self.bias(self.q[:, :1], self.k[:, :1], ticks, Keys(order, order))[:, :, 0]


@register
class NoPositionConfig(PositionConfig):
    """No positions (NoPE)."""

    kind: ClassVar[str] = "none"
    about = About(
        source="Kazemnejad et al. 2023, section 2", equation=r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{E}}",
        differs=(("rope", "order is known through the mask alone."),))

    def in_words(self, d_model: int = 0) -> str:
        return ""

    def build(self, dims: Dims) -> NoPosition:
        return NoPosition()


class NoPosition(PositionScheme):
    """The identity at all four points."""

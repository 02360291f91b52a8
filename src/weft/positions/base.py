"""`PositionScheme`: where and how positions enter a model.

A scheme acts at up to four points and is the identity at the others:

* on embeddings, once, before the first block (`embed`): learned, sinusoidal, naive codes;
* on queries and keys, before the keys are stored (`rotate`): RoPE and its scalings;
* on scores, after scaling (`bias`): ALiBi, T5, Shaw, Transformer-XL, DeBERTa, TUPE;
* on values (`value_terms`): Shaw.

Schemes see positions (`Ticks.position`, `Keys.position`), masks see order. Each scheme owns its projections and scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.core.config import Dims, PartConfig
from weft.core.layer import Part

Point = Literal["embeddings", "queries_keys", "scores", "values"]


class PositionScheme(Part):
    """Base of position schemes; subclasses override the points that ``acts_on`` names."""

    role = "positions"

    acts_on: ClassVar[frozenset[Point]] = frozenset()

    @property
    def width(self) -> int:
        """Features that `embed` concatenates; the token embedding is narrower by as many."""
        return 0

    @property
    def limit(self) -> int | None:
        """The most tokens a document may have; None when any length will do."""
        return None

    def embed(self, x: Tensor, ticks: Ticks) -> Tensor:
        """Embeddings [B,T,D - width] with positions, [B,T,D]."""
        return x

    def rotate(self, x: Tensor, ticks: Ticks) -> Tensor:
        """Queries or keys [B,T,H,E], with their own positions worked in."""
        return x

    def scale(self, d_head: int) -> float | None:
        """The factor on q.k that the scheme prescribes; None leaves the attention's own."""
        return None

    def bias(self, q: Tensor, k: Tensor, ticks: Ticks, keys: Keys) -> Tensor | None:
        """What is added to the scaled scores, [#B,H,T,S]; None for nothing.

        Args:
            q: projected queries [B,T,H,E].
            k: projected keys [B,S,K,E].
        """
        return None

    def value_terms(self, weights: Tensor, ticks: Ticks, keys: Keys) -> Tensor | None:
        """What is added to the attention's output, [B,T,H,E], from its weights [B,H,T,S]; None for nothing."""
        return None


class PositionConfig(PartConfig):
    """Base of position scheme configurations. ``dims.d_model`` is the model's width; schemes inside attention are
    built by `build_for_heads` instead."""

    group: ClassVar[str] = "position"

    embedding_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """What token embeddings need under this scheme: fields of the model's ``embedding`` and their values, for those
    that the configuration leaves out."""

    def build(self, dims: Dims) -> PositionScheme:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> PositionScheme:
        """The scheme for an attention of ``n_heads`` query heads of size ``d_head``."""
        return self.build(dims)

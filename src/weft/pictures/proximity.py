"""How near positions are to each other under a position scheme, and what holds of that.

The proximity of a query position i and a key position j is

    of a code added to embeddings      PE(i).PE(j) / mean of PE(p).PE(p)
    of a rotation of queries and keys  E[q.R(j-i)q] / E[q.q] over random q, the mean cosine of the rotated pairs
    of a term on scores                the term itself, if it does not depend on the content of the tokens

Measured are monotonicity, translation invariance and symmetry, the properties that Dufter, Schmitt and Schuetze (2022,
section 2) and Wang et al. (2021, section 3) ask of proximities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.core.span import WHOLE
from weft.core.strict_json import Record
from weft.positions.base import PositionScheme

ROUNDING = 1e-9
"""Rises of proximity below this, as a share of its range, are taken for rounding."""


@dataclass(frozen=True)
class Properties(Record):
    """The properties of a proximity.

    Attributes:
        monotone: the share of steps from one distance to the next, of key before query, at which the mean proximity
            does not grow.
        first_rise: the smallest distance from which the mean proximity grows; None if it never does.
        invariant: the share of the variance of proximities that the difference j - i explains: 1 for proximities that
            depend on it alone.
        asymmetry: the norm of the antisymmetric part over the norm of both, without the mean: 0 for symmetric ones.
    """

    monotone: float
    first_rise: int | None
    invariant: float
    asymmetry: float


def ticks_of(tokens: int) -> tuple[Ticks, Keys]:
    """The positions of a document of so many tokens, as queries and as keys."""
    ticks = WHOLE.resolve(None, torch.empty(1, tokens)).ticks
    return ticks, Keys.of(ticks)


@torch.no_grad()
def codes(scheme: PositionScheme, tokens: int, width: int) -> Float[Tensor, "T D"]:
    """The vectors that a scheme adds to embeddings of ``width`` features, or concatenates with them, at every
    position."""
    ticks, _ = ticks_of(tokens)
    blank = torch.zeros(1, tokens, width - scheme.width, dtype=torch.float64)
    return scheme.embed(blank, ticks)[0].double()


@torch.no_grad()
def rotations(scheme: PositionScheme, tokens: int, size: int) -> Float[Tensor, "T E E"]:
    """The linear map that a scheme applies to queries and keys of ``size`` features, at every position: column e is
    what becomes of the unit vector e."""
    ticks, _ = ticks_of(tokens)
    basis = torch.eye(size, dtype=torch.float64)[None, None].expand(1, tokens, size, size)
    return scheme.rotate(basis.clone(), ticks)[0].transpose(1, 2)


@torch.no_grad()
def bias(scheme: PositionScheme, tokens: int, heads: int, size: int, seed: int = 0) -> Float[Tensor, "H T S"]:
    """The term that a scheme adds to the scores of random queries and keys of unit variance."""
    ticks, keys = ticks_of(tokens)
    dtype = next((parameter.dtype for parameter in scheme.parameters()), torch.float64)
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    def content(x: Tensor) -> tuple[Tensor, Tensor]:
        """Projections of an attention layer, drawn so that vectors of unit variance keep it."""
        width = x.shape[-1]
        q, k = ((x @ drawn(width, heads * size) / math.sqrt(width)).unflatten(-1, (heads, size)) for _ in range(2))
        return q, k

    q, k = (drawn(1, tokens, heads, size) for _ in range(2))

    found = scheme.prepared(content)(q, k, ticks, keys)
    return found.expand(1, heads, tokens, tokens)[0].double()


def by_content(scheme: PositionScheme, heads: int, size: int) -> bool:
    """Whether the term on scores depends on the content of queries and keys."""
    first, second = (bias(scheme, 9, heads, size, seed) for seed in (0, 1))
    return not torch.allclose(first, second)


def proximities(scheme: PositionScheme, tokens: int, heads: int, size: int) -> Float[Tensor, "H T S"] | None:
    """The proximities [H,T,S] of a scheme; one head where all are alike, None where there is none: no positions, or a
    term that depends on content.

    Args:
        scheme: built for that many heads of that size, or, if it acts on embeddings, for heads times size features.
        tokens: positions from 0.
    """
    if "embeddings" in scheme.acts_on:
        code = codes(scheme, tokens, heads * size)
        products = code @ code.T
        return (products / products.diagonal().mean())[None]
    if "queries_keys" in scheme.acts_on:
        turned = rotations(scheme, tokens, size).flatten(1)
        return (turned @ turned.T / size)[None]
    if "scores" in scheme.acts_on and not by_content(scheme, heads, size):
        return bias(scheme, tokens, heads, size)
    return None


def by_distance(proximity: Float[Tensor, "T S"]) -> Float[Tensor, " T"]:
    """The mean proximity of queries to keys so many tokens before them, from distance 0."""
    return torch.stack([proximity.diagonal(-distance).mean() for distance in range(proximity.shape[0])])


def properties(proximity: Float[Tensor, "T S"]) -> Properties:
    """Monotonicity, translation invariance and symmetry of proximities, of at least three positions."""
    curve = by_distance(proximity)
    spread = float(proximity.max() - proximity.min()) or 1.0
    rises = (curve[1:] - curve[:-1]) > ROUNDING * spread
    first = int(rises.nonzero()[0]) if bool(rises.any()) else None
    centred = proximity - proximity.mean()
    tokens = proximity.shape[0]
    means = torch.stack([proximity.diagonal(offset).mean() for offset in range(1 - tokens, tokens)])
    index = torch.arange(tokens)
    left = proximity - means[index[None] - index[:, None] + tokens - 1]
    total = float(centred.square().sum())
    odd, even = (centred - centred.T) / 2, (centred + centred.T) / 2
    norms = float(odd.norm()), float(torch.sqrt(odd.square().sum() + even.square().sum()))
    return Properties(1.0 - float(rises.double().mean()), first,
                      1.0 if total == 0 else 1.0 - float(left.square().sum()) / total,
                      0.0 if norms[1] == 0 else norms[0] / norms[1])


def wavelengths(scheme: PositionScheme, size: int, tokens: int = 2) -> list[float]:
    """Tokens of a full turn of each rotated pair, ascending: from the eigenvalues exp(i theta) of the map between two
    neighbouring positions. Features that are not rotated have none.

    Args:
        scheme: acts on queries and keys.
        tokens: of the document, for rotations that depend on its length.
    """
    first, second = rotations(scheme, tokens, size)[:2]
    angles = torch.linalg.eigvals(second @ torch.linalg.inv(first)).angle()
    turned = angles[angles > 1e-12].sort(descending=True).values
    return [2 * math.pi / float(angle) for angle in turned]

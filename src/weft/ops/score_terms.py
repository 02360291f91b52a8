"""Terms that are added to the scaled scores of attention, as symbols: a form writes out what it needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from weft.masks.grid import Grid, Parts, QueryBlock, picked


class ScoreTerm(ABC):
    """Base of terms.

    Attributes:
        learns: a gradient flows into it.
        by_distance: it has one number for each distance of two tokens and head, so that it is the same for all blocks
            of a grid.
    """

    learns: bool = False
    by_distance: bool = False

    @abstractmethod
    def dense(self) -> Float[Tensor, "#B #H T S"]:
        """For every query and key."""

    @abstractmethod
    def at(self, queries: slice, keys: Parts) -> Float[Tensor, "#B #H t s"]:
        """For some queries and some keys."""

    def distances(self, least: int, count: int) -> Float[Tensor, "#B #H L"]:
        """For differences of a key's position and a query's from ``least`` on; only of a term ``by_distance``."""
        raise NotImplementedError(f"{type(self).__name__} is no term by distance")

    def same(self, grid: Grid) -> Float[Tensor, "#B #H rows width"] | None:
        """Laid on a grid, where it is the same for all blocks; None where it is not."""
        return None

    @final
    def laid(self, grid: Grid) -> Float[Tensor, "#B #H _ width"]:
        """Laid on a grid, for one block where all are alike, else for all of them."""
        one = self.same(grid)
        return grid.laid(self._of_block, 0.0) if one is None else one

    def _of_block(self, block: QueryBlock) -> Tensor:
        return self.at(block.queries, block.keys)


@final
class WrittenTerm(ScoreTerm):
    """A term that is already written out.

    Args:
        bias: for every query and key.
    """

    def __init__(self, bias: Float[Tensor, "#B #H T S"]) -> None:
        self._bias = bias
        self.learns = bias.requires_grad

    def dense(self) -> Tensor:
        return self._bias

    def at(self, queries: slice, keys: Parts) -> Tensor:
        return picked(self._bias[..., queries, :], 3, keys)


def slid(by_distance: Float[Tensor, "*#BH L"], rows: int, width: int) -> Float[Tensor, "*#BH rows width"]:
    """A view of a matrix with one number on each diagonal: entry (r, c) is entry c - r + rows - 1 of ``by_distance``,
    whose L = rows + width - 1 numbers begin with that of the lower left corner."""
    return by_distance.unfold(-1, width, 1).flip(-2)


def joined(terms: tuple[ScoreTerm, ...], grid: Grid | None = None) -> Tensor | None:
    """The sum of terms, for every query and key or laid on a grid; None of no terms."""
    total: Tensor | None = None
    for term in terms:
        each = term.dense() if grid is None else term.laid(grid)
        total = each if total is None else _sum(total, each)
    return total


def _sum(one: Tensor, other: Tensor) -> Tensor:
    """The sum of two tensors, each laid for one block or for all."""
    rows = max(one.shape[2], other.shape[2])
    return _repeated(one, rows) + _repeated(other, rows)


def _repeated(x: Tensor, rows: int) -> Tensor:
    return x if x.shape[2] == rows else torch.cat([x] * -(-rows // x.shape[2]), 2)[:, :, :rows]

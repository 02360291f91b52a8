"""Distances between queries and keys, and scores that are read from a table by distance."""

from __future__ import annotations

from jaxtyping import Float, Int64
from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.positions.coordinates import whole


def distances(ticks: Ticks, keys: Keys, scheme: str) -> Int64[Tensor, "#B T S"]:
    """Return the position of each query minus the position of each key.

    Raises:
        InputError: for coordinates that are not whole numbers.
        UnsupportedError: for several coordinates a token.
    """
    return whole(ticks.position, scheme)[:, :, None] - whole(keys.position, scheme)[:, None, :]


def of_pairs(by_row: Float[Tensor, "B H T R"], row: Int64[Tensor, "#B T S"]) -> Float[Tensor, "B H T S"]:
    """Read each query's product with a row of a table, for the row that belongs to each of its keys.

    Args:
        by_row: products of the queries with every row of a table of R rows.
        row: the row of each query and key.
    """
    batch, heads, steps, _ = by_row.shape
    return by_row.gather(3, row[:, None].expand(batch, heads, steps, row.shape[2]))


def of_pairs_by_key(by_row: Float[Tensor, "B H S R"], row: Int64[Tensor, "#B T S"]) -> Float[Tensor, "B H T S"]:
    """Read each key's product with a row of a table, for the row that belongs to each of its queries.

    Args:
        by_row: products of the keys with every row of a table of R rows.
        row: the row of each query and key.
    """
    return of_pairs(by_row, row.transpose(1, 2)).transpose(2, 3)

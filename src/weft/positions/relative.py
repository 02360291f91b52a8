"""What schemes that act on scores by the distance of two tokens have in common."""

from __future__ import annotations

from jaxtyping import Float, Int64
from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.positions.coordinates import whole


def distances(ticks: Ticks, keys: Keys, scheme: str) -> Int64[Tensor, "#B T S"]:
    """Position of the query less position of the key.

    Raises:
        InputError: for coordinates that are not whole numbers.
        UnsupportedError: for several coordinates a token.
    """
    return whole(ticks.position, scheme)[:, :, None] - whole(keys.position, scheme)[:, None, :]


def of_pairs(by_row: Float[Tensor, "B H T R"], row: Int64[Tensor, "#B T S"]) -> Float[Tensor, "B H T S"]:
    """Of each query its numbers at the rows of a table that its keys have."""
    batch, heads, steps, _ = by_row.shape
    return by_row.gather(3, row[:, None].expand(batch, heads, steps, row.shape[2]))


def of_pairs_by_key(by_row: Float[Tensor, "B H S R"], row: Int64[Tensor, "#B T S"]) -> Float[Tensor, "B H T S"]:
    """Of each key its numbers at the rows of a table that its queries have."""
    return of_pairs(by_row, row.transpose(1, 2)).transpose(2, 3)

"""Checks of coordinates for position schemes that need one position per token, distances between
queries and keys, and scores that are read from a table by distance."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.core.compiling import require
from weft.core.errors import InputError, UnsupportedError


def one_dimensional(position: Tensor, scheme: str) -> Tensor:
    """Return ``position`` [#B,T], unless tokens have several coordinates. Raises `UnsupportedError`: n-dimensional
    coordinates [B,T,n]."""
    if position.dim() == 2:
        return position
    raise UnsupportedError(f"{scheme} takes one coordinate per token, got {position.shape[-1]}.",
                           where="span.coordinates",
                           remedy="Give coordinates of shape [B,T], or use an n-dimensional position scheme.")


def whole(position: Tensor, scheme: str) -> Tensor:
    """Return ``position`` [#B,T] if it is one whole number for each token.

    Raises:
        UnsupportedError: n-dimensional coordinates [B,T,n].
        InputError: coordinates of a floating-point dtype.
    """
    position = one_dimensional(position, scheme)
    if position.is_floating_point():
        raise InputError(f"{scheme} needs whole positions, got coordinates of {position.dtype}.",
                         where="span.coordinates", remedy="Give integer coordinates.")
    return position


def counted_position(ticks: Ticks, scheme: str) -> Tensor:
    """Return the positions as whole numbers [#B,T], with 0 for tokens beyond a row's count, so that these are valid
    indices of any table.

    Raises:
        UnsupportedError: n-dimensional coordinates [B,T,n].
        InputError: coordinates of a floating-point dtype.
    """
    position = whole(ticks.position, scheme)
    return position if ticks.valid is None else torch.where(ticks.valid, position, 0)


def require_positions(allowed: Tensor, what: str, remedy: str) -> None:
    """Refuse the call unless every entry of ``allowed`` is true. Raises `InputError`: an entry is false, on the CPU; on
    other devices and in compiled code an asynchronous assertion fails instead."""
    if torch.compiler.is_compiling():  # a traced graph cannot construct an exception, only assert with its text
        torch._assert_async(allowed.all(), f"position: {what} {remedy}")
    else:
        require(allowed, InputError, what, where="position", remedy=remedy)


def on_grid(ticks: Ticks, grid: tuple[int, ...], first: int, scheme: str) -> Tensor:
    """Return the coordinates [#B,T,n] of each token: those given to the call, or else those of its index on a grid,
    row by row.

    Args:
        ticks: of the tokens.
        grid: sizes of all axes but the first; n is one more than their number.
        first: index of the grid's first token; those before it lie at the origin.
        scheme: named in the error.

    Raises:
        InputError: the call gives another number of coordinates.
    """
    axes = len(grid) + 1
    if ticks.coordinates is None:
        index, inner = ticks.position, [math.prod(grid[axis:]) for axis in range(axes)]
        index = (index - first).clamp(min=0) if first else index
        rest = [index // inner[0], *(index // inner[axis] % grid[axis - 1] for axis in range(1, axes))]
        return torch.stack(rest, -1)
    if ticks.coordinates.dim() == 3 and ticks.coordinates.shape[-1] == axes:
        return ticks.coordinates
    given = 1 if ticks.coordinates.dim() == 2 else ticks.coordinates.shape[-1]
    raise InputError(f"{scheme} takes {axes} coordinates per token, got {given}.", where="span.coordinates",
                     remedy=f"Give coordinates of shape [B,T,{axes}], or none for a grid's row order.")


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

"""Grids of cells, one beside the other: rows are queries, columns keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from weft.drawing.figure import Figure
from weft.drawing.markup import Markup, join, tag
from weft.drawing.shapes import label

BETWEEN, HEAD, SIDE, FOOT = 26.0, 34.0, 22.0, 10.0
"""Units between grids, above them, at the left of each and beneath."""


@final
@dataclass(frozen=True)
class Cells:
    """A grid of shares from 0 to 1.

    Attributes:
        heading: above it.
        shares: rows of values, all of one length.
    """

    heading: str
    shares: Sequence[Sequence[float]]


def cells_figure(name: str, title: str, description: str, grids: Sequence[Cells], *, cell: float, per_row: int,
                 own: bool = True, rows: str = "queries", columns: str = "keys") -> Figure:
    """Grids as a figure, so many beside one another.

    Args:
        name: of the figure.
        title: what it is.
        description: what is to be seen.
        grids: all of one size.
        cell: side of a cell.
        per_row: grids beside one another.
        own: whether the cells of a query and its own key have a colour of their own.
        rows: what the rows are.
        columns: what the columns are.
    """
    high, wide = len(grids[0].shares) * cell, len(grids[0].shares[0]) * cell
    step_x, step_y = max(wide, 76.0) + BETWEEN + SIDE, high + HEAD + FOOT
    drawn = [_grid(grid, SIDE + index % per_row * step_x, HEAD + index // per_row * step_y, cell, own, rows, columns)
             for index, grid in enumerate(grids)]
    width = min(len(grids), per_row) * step_x - BETWEEN + 6
    return Figure(name, title, description, width, -(-len(grids) // per_row) * step_y, join(*drawn))


def _grid(grid: Cells, x: float, y: float, cell: float, own: bool, rows: str, columns: str) -> Markup:
    gap = 1.0 if cell >= 6 else 0.0
    lag = len(grid.shares[0]) - len(grid.shares)
    marks = [_cell(x + column * cell, y + row * cell, cell - gap, share,
                   "own" if own and column == row + lag else "lit")
             for row, values in enumerate(grid.shares) for column, share in enumerate(values)]
    side = tag("text", {"transform": f"translate({x - 7:g} {y + len(grid.shares) * cell / 2:g}) rotate(-90)",
                        "text-anchor": "middle"}, rows)
    return tag("g", {"data-grid": grid.heading}, label(x, y - 19, grid.heading, kind="name"),
               label(x, y - 5, f"{columns} →"), side, marks)


def _cell(x: float, y: float, side: float, share: float, kind: str) -> Markup:
    attributes: dict[str, str | float | bool | None] = {
        "class": kind if share > 0 else "unlit", "x": round(x, 1), "y": round(y, 1), "width": side, "height": side}
    if 0 < share < 1:
        attributes["fill-opacity"] = round(max(share, 0.06), 3)
    return tag("rect", attributes)

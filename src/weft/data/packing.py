"""Whole documents in windows: best-fit packing.

Ding et al. 2024, "Fewer Truncations Improve Language Modeling", algorithm 1 (best-fit decreasing).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Int64

from weft.data.stream import TokenStream

READ_AT_ONCE = 1 << 24
"""Marks of document starts that are held at once, for streams that lie on disk."""


@final
@dataclass(frozen=True, eq=False)
class Pieces:
    """Documents, and the parts of those longer than a window, by what they predict.

    Attributes:
        starts: position in the stream of each piece's first input.
        lengths: inputs of each piece; its targets are one position on.
        documents: that predict anything.
        cut: of these, the ones longer than a window.
    """

    starts: Int64[np.ndarray, " P"]
    lengths: Int64[np.ndarray, " P"]
    documents: int
    cut: int


def pieces_of(stream: TokenStream, window: int) -> Pieces:
    """Every document of the stream in one piece, or, if it is longer than a window, in as few as it takes: full ones
    and a last one. Every target that counts lies in one piece, with the whole of its document before it that the
    window holds.

    A document's last token is an input only where it predicts the next document's first one (see
    `TokenStream.begins_scored`); documents that predict nothing have no piece.
    """
    starts = np.concatenate([first + np.flatnonzero(stream.begins[first:first + READ_AT_ONCE])
                             for first in range(0, len(stream), READ_AT_ONCE)]).astype(np.int64)
    starts = np.union1d(starts, [0])
    last_target = np.append(starts[1:] - (0 if stream.begins_scored else 1), len(stream) - 1)
    inputs = last_target - starts
    starts, inputs = starts[inputs > 0], inputs[inputs > 0]
    parts = -(-inputs // window)
    place = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    lengths = np.minimum(np.repeat(inputs, parts) - place * window, window)
    return Pieces(np.repeat(starts, parts) + place * window, lengths, len(starts), int((parts > 1).sum()))


def best_fit(lengths: Int64[np.ndarray, " P"], window: int) -> Int64[np.ndarray, " P"]:
    """The row of each piece, rows numbered from 0: longest pieces first, each into the fullest row that has room for
    it, or else into a new one.

    Pieces of one length are placed together: the row that fits one best fits the next one best too, as long as it has
    room. So for P pieces in rows of W it takes at most P searches among the at most W rooms that rows have left.

    Args:
        lengths: of the pieces, from 1 to ``window``.
        window: what a row holds.
    """
    rooms, rows_with = list[int](), dict[int, list[int]]()
    rows, opened = np.empty(len(lengths), dtype=np.int64), 0
    order = np.argsort(-lengths, kind="stable")
    for items in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1) if len(order) else []:
        size = int(lengths[items[0]])
        while len(items):
            place = bisect_left(rooms, size)
            room = rooms[place] if place < len(rooms) else window
            each = room // size
            needed = -(-len(items) // each)
            if place < len(rooms):
                taken = _take(rooms, rows_with, place, needed)
            else:
                taken, opened = list(range(opened, opened + needed)), opened + needed
            here, items = items[:each * len(taken)], items[each * len(taken):]
            rows[here] = np.repeat(taken, each)[:len(here)]
            odd = len(here) % each
            _give(rooms, rows_with, room - each * size, taken[:-1] if odd else taken)
            _give(rooms, rows_with, room - odd * size, taken[-1:] if odd else [])
    return rows


def _take(rooms: list[int], rows_with: dict[int, list[int]], place: int, needed: int) -> list[int]:
    """At most ``needed`` of the rows that have that room."""
    rows = rows_with[rooms[place]]
    taken = rows[-needed:]
    del rows[-needed:]
    if not rows:
        del rows_with[rooms.pop(place)]
    return taken


def _give(rooms: list[int], rows_with: dict[int, list[int]], room: int, rows: list[int]) -> None:
    """Note the room that is left in some rows; those that are full are done."""
    if not rows or not room:
        return
    if room not in rows_with:
        insort(rooms, room)
    rows_with.setdefault(room, []).extend(rows)

"""Whole documents in windows: best-fit packing.

Ding et al. 2024, "Fewer Truncations Improve Language Modeling", algorithm 1 (best-fit decreasing).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Int64

from weft.data.stream import TokenStream

Long: TypeAlias = Literal["split", "cut", "drop"]
"""What becomes of a document that is longer than a window: it is split into full windows and a rest, its end is cut
off, or it is left out."""

READ_AT_ONCE = 1 << 24
"""Marks of document starts that are read at a time, for streams on disk."""


@dataclass(frozen=True, eq=False)
class DocumentPieces:
    """Documents, and the parts of those that are longer than a window.

    Attributes:
        starts: position in the stream of each piece's first input.
        lengths: inputs of each piece; its targets are one position later.
        documents: number of documents with a token to predict.
        cut: number of these that are longer than a window.
        unscored: number of these of which nothing is scored, so that they have no piece.
    """

    starts: Int64[np.ndarray, " P"]
    lengths: Int64[np.ndarray, " P"]
    documents: int
    cut: int
    unscored: int = 0


def pieces_of(stream: TokenStream, window: int, long: Long = "split") -> DocumentPieces:
    """Every document of the stream as one piece, or, if it is longer than a window, as full windows and a last piece,
    so that every scored target is in one piece. Under the other rules for long documents each has one piece or none;
    those without a scored target then have none either.

    A document's last token is an input only where it predicts the next document's first one (see
    `TokenStream.begins_scored`); documents without a token to predict have no piece.
    """
    starts, inputs = documents_in(stream)
    starts, inputs = starts[inputs > 0], inputs[inputs > 0]
    if long != "split":
        return _at_most_one(stream, starts, inputs, window, long)
    parts = -(-inputs // window)
    place = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    lengths = np.minimum(np.repeat(inputs, parts) - place * window, window)
    return DocumentPieces(np.repeat(starts, parts) + place * window, lengths, len(starts), int((parts > 1).sum()))


def documents_in(stream: TokenStream) -> tuple[Int64[np.ndarray, " D"], Int64[np.ndarray, " D"]]:
    """The position of each document's first token, and how many of its tokens are inputs."""
    starts = np.concatenate([first + np.flatnonzero(stream.begins[first:first + READ_AT_ONCE])
                             for first in range(0, len(stream), READ_AT_ONCE)]).astype(np.int64)
    starts = np.union1d(starts, [0])
    last_target = np.append(starts[1:] - (0 if stream.begins_scored else 1), len(stream) - 1)
    return starts, last_target - starts


def _at_most_one(stream: TokenStream, starts: Int64[np.ndarray, " D"], inputs: Int64[np.ndarray, " D"], window: int,
                 long: Long) -> DocumentPieces:
    """One piece for each document that fits, and for each longer one its beginning or nothing."""
    longer = inputs > window
    lengths = np.minimum(inputs, window)
    kept = scored_in(stream, starts, lengths) > 0
    unscored = int((~kept & ~longer).sum())
    kept &= ~longer | (long == "cut")
    return DocumentPieces(starts[kept], lengths[kept], len(starts), int(longer.sum()), unscored)


def scored_in(stream: TokenStream, starts: Int64[np.ndarray, " P"],
              lengths: Int64[np.ndarray, " P"]) -> Int64[np.ndarray, " P"]:
    """How many targets of each piece are scored."""
    return np.array([int(stream.scored(slice(first + 1, first + length + 1)).sum())
                     for first, length in zip(starts.tolist(), lengths.tolist(), strict=True)], dtype=np.int64)


def best_fit(lengths: Int64[np.ndarray, " P"], window: int) -> Int64[np.ndarray, " P"]:
    """The row of each piece, rows numbered from 0: longest pieces first, each into the fullest row in which it fits, or
    into a new one.

    Pieces of one length are placed together: the row that is best for one is best for the next, as long as it fits. For
    P pieces this takes at most P searches among the at most W distinct amounts of space left in rows of W inputs.

    Args:
        lengths: of the pieces, from 1 to ``window``.
        window: W, inputs of a row.
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
    """Remove and return at most ``needed`` of the rows with that much space left."""
    rows = rows_with[rooms[place]]
    taken = rows[-needed:]
    del rows[-needed:]
    if not rows:
        del rows_with[rooms.pop(place)]
    return taken


def _give(rooms: list[int], rows_with: dict[int, list[int]], room: int, rows: list[int]) -> None:
    """Record the space left in some rows; full rows are dropped."""
    if not rows or not room:
        return
    if room not in rows_with:
        insort(rooms, room)
    rows_with.setdefault(room, []).extend(rows)

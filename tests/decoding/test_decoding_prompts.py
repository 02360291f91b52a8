"""Ragged batches: padding on the right with a count."""

from __future__ import annotations

from weft.decoding import ragged

ROWS = [[5, 3, 9], [4], [], [7, 8]]


def test_rows_are_padded_on_the_right() -> None:
    batch = ragged(ROWS)
    assert batch.tokens.tolist() == [[5, 3, 9], [4, 0, 0], [0, 0, 0], [7, 8, 0]]
    assert (batch.count.tolist(), batch.level, batch.longest) == ([3, 1, 0, 2], False, 3)
    level = ragged([[1, 2], [3, 4]])
    assert level.level and level.counts is None

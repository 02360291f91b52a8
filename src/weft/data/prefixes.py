"""Prefixes of documents in rows of running text: tokens that attend to one another in both directions, and are read
and not predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Bool, Int64

from weft.data.batch import Batch
from weft.data.orders import hashed

SEEDED = 0x5EED
"""Keeps the draws of prefixes apart from other draws with the same seed and epoch."""


@final
class PrefixedRows(NamedTuple):
    """Rows of text, whose targets inside prefixes are not scored.

    Attributes:
        text: the rows.
        prefix: which inputs belong to their document's prefix.
    """

    text: Batch
    prefix: Bool[np.ndarray, "B T"]


def with_drawn_prefixes(text: Batch, seed: int) -> PrefixedRows:
    """Every document, or what a row has of it, is divided at a random place: of n inputs 1 to n are the prefix, all
    equally likely, and the targets behind it, at least one, are predicted.

    The draw depends on the seed, the document's place in the text and the epoch alone.

    Args:
        text: rows with places and epochs.
        seed: any integer.
    """
    assert text.places is not None and text.epoch is not None, "batches of a stream have places and epochs"
    row, first, size = _documents(text)
    mixed = hashed(seed, text.epoch[row] + SEEDED).astype(np.int64)
    draws = (hashed(seed, text.places[row, first] ^ mixed) >> np.uint64(11)).astype(np.float64) / 2.0**53
    return _of_lengths(text, row, first, 1 + (draws * size).astype(np.int64))


def with_prompts(text: Batch) -> PrefixedRows:
    """The prefix of every document, or of what a row has of it, are its inputs up to the one from which the first
    scored target is predicted: its prompt. A document without scored targets is a prefix as a whole."""
    row, first, size = _documents(text)
    width = text.inputs.shape[1]
    places = np.where(text.scored, np.arange(width), width)
    following = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1]  # the next scored target from each input on
    return _of_lengths(text, row, first, np.minimum(following[row, first] - first + 1, size))


def _documents(text: Batch) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """The row, the first input and the number of inputs of each document in a batch."""
    count = np.full(len(text.inputs), text.inputs.shape[1]) if text.count is None else text.count
    begins = text.begins.copy()
    begins[:, 0] = True
    begins &= np.arange(begins.shape[1]) < count[:, None]
    row, first = np.nonzero(begins)
    last = np.where(np.append(row[1:] == row[:-1], False), np.append(first[1:], 0), count[row])
    return row, first, last - first


def _of_lengths(text: Batch, row: Int64[np.ndarray, " n"], first: Int64[np.ndarray, " n"],
                length: Int64[np.ndarray, " n"]) -> PrefixedRows:
    """The rows in which each document's first ``length`` inputs are its prefix: their targets are not scored, but for
    the last one's, which is behind the prefix."""
    border = np.zeros((len(text.inputs), text.inputs.shape[1] + 1), dtype=np.int64)
    np.add.at(border, (row, first), 1)
    np.add.at(border, (row, first + length), -1)
    prefix = border.cumsum(1)[:, :-1] > 0
    inside = prefix.copy()
    inside[row, first + length - 1] = False
    return PrefixedRows(replace(text, scored=text.scored & ~inside), prefix)

"""The choice of tokens that are hidden from a model that is to predict them, and what replaces them.

Prefixes of documents in rows of running text: tokens that attend to one another in both directions, and are read
and not predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from weft.data.batch import Batch
from weft.data.orders import hashed
from weft.data.stream import TokenStream

CHOSEN, REPLACED, RANDOM = range(3)
"""Random draws that are made for every token, independent of one another."""


class Masked(NamedTuple):
    """Rows with some tokens hidden. ``chosen``: whether each token is to be predicted."""

    inputs: Int64[np.ndarray, "B T"]
    chosen: Bool[np.ndarray, "B T"]


@dataclass(frozen=True, eq=False)
class Masking:
    """Each token is chosen with probability ``rate``, independently of all others. Of the chosen tokens a share
    ``masked`` is replaced by the mask, a share ``random`` by another token drawn uniformly, and the rest is unchanged
    (Devlin et al. 2019, section 3.1, task 1, who choose a fixed number of tokens of a row).

    The draws of a token depend on the seed, its place in the text and the epoch alone, and neither on the batch nor on
    the process, so a resumed run hides the tokens that an uninterrupted one would.

    Attributes:
        ordinary: ids from which random tokens are drawn.
        special: ids that are never chosen, such as those that open and close documents.
        rate: share of tokens that are chosen.
        masked: share of the chosen tokens that the mask replaces.
        random: share of the chosen tokens that another token replaces.
        continuing: ids that continue a word, whose tokens are then chosen together (whole-word masking, the option
            ``do_whole_word_mask`` of BERT's released ``create_pretraining_data.py``); None: each token by itself.
    """

    mask: int
    ordinary: Int64[np.ndarray, " n"]
    special: Int64[np.ndarray, " m"]
    rate: float
    masked: float
    random: float
    seed: int
    continuing: Int64[np.ndarray, " k"] | None = None

    def hide(self, ids: Int64[np.ndarray, "B T"], places: Int64[np.ndarray, "B T"], epoch: Int64[np.ndarray, " B"],
             countable: Bool[np.ndarray, "B T"], words: Int64[np.ndarray, "B T"] | None = None) -> Masked:
        """Hide some tokens of the rows.

        Args:
            ids: the tokens.
            places: position of each token in the text.
            epoch: of each row.
            countable: whether each token may be chosen.
            words: position in the text of the first token of each token's word, whose draw chooses the whole word;
                None: each token has a draw of its own.
        """
        chosen = countable & ~np.isin(ids, self.special) & (
            self._draw(CHOSEN, places if words is None else words, epoch) < self.rate)
        kind = self._draw(REPLACED, places, epoch)
        other = self.ordinary[(self._draw(RANDOM, places, epoch) * len(self.ordinary)).astype(np.int64)]
        inputs = np.where(chosen & (kind < self.masked), self.mask, ids)
        return Masked(np.where(chosen & (kind >= self.masked) & (kind < self.masked + self.random), other, inputs),
                      chosen)

    def _draw(self, which: int, places: Int64[np.ndarray, "B T"], epoch: Int64[np.ndarray, " B"]) -> np.ndarray:
        """A number in [0, 1) for each token."""
        row = hashed(self.seed, 3 * epoch + which).astype(np.int64)[:, None]
        mixed = hashed(self.seed, places ^ row)
        drawn: np.ndarray = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
        return drawn


def word_starts(stream: TokenStream, places: Int64[np.ndarray, "B T"],
                continuing: Int64[np.ndarray, " k"]) -> Int64[np.ndarray, "B T"]:
    """The position in the stream of the first token of each token's word, which may be before a row's first token.

    Args:
        stream: the tokens.
        places: positions of tokens.
        continuing: ids that continue a word.
    """
    first = places.copy()
    inside = np.ones(places.shape, dtype=bool)
    while inside.any():
        here = first[inside]
        # A document begins a word even where its first id continues one.
        inside[inside] = np.isin(stream.tokens[here], continuing) & ~stream.begins[here] & (here > 0)
        first[inside] -= 1
    return first


SEEDED = 0x5EED
"""Keeps the draws of prefixes apart from other draws with the same seed and epoch."""


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

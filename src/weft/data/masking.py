"""The choice of tokens that are hidden from a model that is to predict them, and what replaces them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Bool, Int64

from weft.data.orders import hashed
from weft.data.stream import TokenStream

CHOSEN, REPLACED, RANDOM = range(3)
"""Random draws that are made for every token, independent of one another."""


@final
class Masked(NamedTuple):
    """Rows with some tokens hidden. ``chosen``: whether each token is to be predicted."""

    inputs: Int64[np.ndarray, "B T"]
    chosen: Bool[np.ndarray, "B T"]


@final
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
        seed: any integer.
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

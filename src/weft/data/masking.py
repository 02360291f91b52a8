"""Which tokens are hidden from a model that is to predict them, and what stands in their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Bool, Int64

from weft.data.permutation import hashed

CHOSEN, REPLACED, RANDOM = range(3)
"""Draws that are made for every token, each from bits of its own."""


@final
class Masked(NamedTuple):
    """Rows with some tokens hidden. ``chosen``: the tokens that are to be predicted."""

    inputs: Int64[np.ndarray, "B T"]
    chosen: Bool[np.ndarray, "B T"]


@final
@dataclass(frozen=True, eq=False)
class Masking:
    """Each token is chosen with ``rate``, apart from all others; of the chosen ones a share ``masked`` becomes the
    mask, a share ``random`` another token, drawn evenly, and the rest stay as they are (Devlin et al. 2019, section
    3.1, task 1, who choose the tokens of a row together).

    What happens to a token depends on the seed, its place in the text and the epoch alone: neither on the batch it is
    in nor on the process that computes it, so a run that is resumed hides what it would have hidden.

    Attributes:
        mask: id of the mask.
        ordinary: ids that may stand in for a token.
        special: ids that are never chosen, such as what opens a document.
        rate: share of tokens that are chosen.
        masked: share of the chosen ones that become the mask.
        random: share of them that become another token.
        seed: any integer.
    """

    mask: int
    ordinary: Int64[np.ndarray, " n"]
    special: Int64[np.ndarray, " m"]
    rate: float
    masked: float
    random: float
    seed: int

    def hide(self, ids: Int64[np.ndarray, "B T"], places: Int64[np.ndarray, "B T"], epoch: Int64[np.ndarray, " B"],
             countable: Bool[np.ndarray, "B T"]) -> Masked:
        """Rows of tokens with some hidden.

        Args:
            ids: the tokens.
            places: where in the text each stands.
            epoch: of each row.
            countable: tokens that may be chosen at all.
        """
        chosen = countable & ~np.isin(ids, self.special) & (self._draw(CHOSEN, places, epoch) < self.rate)
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

"""What all estimators share: counts of counts, and a table made of probabilities and back-off weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from weft.ngram.counts import NgramCounts
from weft.ngram.table import NgramTable, TableLevel


def counts_of_counts(counts: Int[np.ndarray, "G"], highest: int) -> Int[np.ndarray, "R"]:
    """n_r, the number of n-grams that occur exactly r times, for r = 0 .. highest (n_0 is given as 0)."""
    found = np.bincount(np.minimum(counts, highest + 1), minlength=highest + 2)[: highest + 1]
    found[0] = 0
    return found


def assemble(
    counts: NgramCounts, probs: Sequence[Float[np.ndarray, "G"]], weights: Sequence[Float[np.ndarray, "G"]]
) -> NgramTable:
    """A table from probabilities of every length and back-off weights of every length but the last.

    A context that no word was counted after says nothing: its weight is 1 whatever ``weights`` holds.
    """
    levels = []
    for length, (level, prob) in enumerate(zip(counts.levels, probs, strict=True), start=1):
        backoff = np.empty(0)
        if length < counts.order:
            backoff = _log(np.where(counts.per_context(length + 1, None) > 0, weights[length - 1], 1.0))
        levels.append(TableLevel(level.keys, _log(prob), backoff))
    return NgramTable(counts.order, counts.vocab_size, counts.bos, tuple(levels))


def divide(numerator: Float[np.ndarray, "C"], denominator: Float[np.ndarray, "C"]) -> Float[np.ndarray, "C"]:
    """Quotient, 0 where the denominator is 0: contexts without a following word, whose values are never used."""
    quotient = np.zeros(len(denominator))
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return quotient


def _log(prob: Float[np.ndarray, "G"]) -> Float[np.ndarray, "G"]:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(prob))

"""Interpolated modified Kneser-Ney smoothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from weft.core.errors import InputError
from weft.ngram.counts import NgramCounts
from weft.ngram.smoothing import assemble, counts_of_counts, divide
from weft.ngram.table import NgramTable

FALLBACK = (0.5, 1.0, 1.5)
"""Discounts where the counts of counts give none, those of lmplz."""


class Discounts(NamedTuple):
    """The discounts of one order for counts of 1, 2, and 3 or more; ``estimated`` is false for the fallback values."""

    one: float
    two: float
    three: float
    estimated: bool


def modified_kneser_ney(
    counts: NgramCounts, discounts: Sequence[tuple[float, float, float]] | None = None
) -> NgramTable:
    """Interpolated modified Kneser-Ney.

        p(w | c) = (a(c w) - D(a(c w))) / A(c) + g(c) p(w | c'),     A(c) = sum_v a(c v)
        g(c) = (D_1 N_1(c .) + D_2 N_2(c .) + D_3+ N_3+(c .)) / A(c)

    a is the count at the highest order and for n-grams that begin with the start symbol; below, it is the number of
    different words that precede the n-gram (the start symbol is one of them). Unigrams are interpolated with the
    uniform distribution over the vocabulary (without the start symbol), so that unseen words have positive probability.

    Chen & Goodman 1998 (TR-10-98; section 3 of the 1999 article); Heafield et al. 2013, section 3, whose treatment
    of start symbols and of the uniform distribution (lmplz's default) is followed; nothing is pruned. nltk's
    ``KneserNeyInterpolated`` differs: one discount, none for unigrams, no uniform distribution.

    Args:
        counts: of every order.
        discounts: (D_1, D_2, D_3+) for each order from 1 to n; None: estimated, see :func:`estimate_discounts`.

    Raises:
        InputError: given discounts that are not one triple for each order with 0 <= D_r <= r.
    """
    chosen = estimate_discounts(counts) if discounts is None else _check_discounts(discounts, counts.order)
    size = int(counts.predicted.sum())
    prob = _unigrams(adjusted_counts(counts, 1), chosen[0], counts.predicted / size)
    probs, weights = [prob], []
    for length in range(2, counts.order + 1):
        prob, weight = _level(counts, length, chosen[length - 1], prob)
        probs.append(prob)
        weights.append(weight)
    return assemble(counts, probs, weights)


def adjusted_counts(counts: NgramCounts, length: int) -> Int[np.ndarray, "G"]:
    """a(w_1 .. w_k): counts at the highest order and after a start symbol, else the number of distinct preceding
    words."""
    level = counts.levels[length - 1]
    if length == counts.order:
        return level.counts
    before = np.bincount(counts.levels[length].suffix, minlength=len(level.keys))
    return np.where(counts.starts(length), level.counts, before)


def estimate_discounts(counts: NgramCounts) -> tuple[Discounts, ...]:
    """D_1, D_2 and D_3+ of each order from the counts of its adjusted counts (Chen & Goodman 1998, equation 26).

        D_r = r - (r+1) Y t_{r+1} / t_r,     Y = t_1 / (t_1 + 2 t_2)

    Where t_1, t_2 or t_3 is 0, or some D_r is not above 0, the order's three are (0.5, 1, 1.5).
    """
    return tuple(_estimate(adjusted_counts(counts, length)) for length in range(1, counts.order + 1))


def _estimate(adjusted: Int[np.ndarray, "G"]) -> Discounts:
    t = [int(value) for value in counts_of_counts(adjusted, 4)]
    # In integers, so that rounding cannot decide between an estimate and the fallback.
    if not all(r * t[r] * (t[1] + 2 * t[2]) > (r + 1) * t[1] * t[r + 1] for r in (1, 2, 3)):
        return Discounts(*FALLBACK, False)
    y = t[1] / (t[1] + 2 * t[2])
    one, two, three = (r - (r + 1) * y * t[r + 1] / t[r] for r in (1, 2, 3))
    return Discounts(one, two, three, True)


def _check_discounts(discounts: Sequence[tuple[float, float, float]], order: int) -> tuple[Discounts, ...]:
    if len(discounts) != order or any(len(triple) != 3 for triple in discounts):
        raise InputError(
            f"discounts must be {order} triples, one for each order; got {list(discounts)}.", where="discounts"
        )
    for length, triple in enumerate(discounts, start=1):
        if not all(0 <= value <= r for r, value in enumerate(triple, start=1)):
            raise InputError(
                f"discounts must satisfy 0 <= D_r <= r for r = 1, 2, 3; got {tuple(triple)}.",
                where=f"discounts[{length - 1}]",
                remedy="Leave them out to estimate them.",
            )
    return tuple(Discounts(*triple, False) for triple in discounts)


def _taken(adjusted: Int[np.ndarray, "G"], discounts: Discounts) -> Float[np.ndarray, "G"]:
    return np.asarray(np.array([0.0, discounts.one, discounts.two, discounts.three])[np.minimum(adjusted, 3)])


def _unigrams(
    adjusted: Int[np.ndarray, "base"], discounts: Discounts, uniform: Float[np.ndarray, "base"]
) -> Float[np.ndarray, "base"]:
    """Unigrams, interpolated with the uniform distribution."""
    taken, total = _taken(adjusted, discounts), adjusted.sum()
    return np.asarray((adjusted - taken) / total + taken.sum() / total * uniform)


def _level(
    counts: NgramCounts, length: int, discounts: Discounts, shorter: Float[np.ndarray, "S"]
) -> tuple[Float[np.ndarray, "G"], Float[np.ndarray, "C"]]:
    """Probabilities of one length and the weights of their contexts, from the probabilities one length down."""
    adjusted, parents = adjusted_counts(counts, length), counts.parents(length)
    taken = _taken(adjusted, discounts)
    totals = counts.per_context(length, adjusted)
    weight = divide(counts.per_context(length, taken), totals)
    prob = (adjusted - taken) / totals[parents] + weight[parents] * shorter[counts.levels[length - 1].suffix]
    return prob, weight

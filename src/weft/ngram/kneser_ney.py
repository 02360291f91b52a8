"""Interpolated modified Kneser-Ney smoothing.

Maximum likelihood, add-k and Katz back-off, and what all estimators share: counts of counts, and a table made of
probabilities and back-off weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from weft.core.errors import InputError
from weft.ngram.counts import NgramCounts
from weft.ngram.table import NgramTable, TableLevel

FALLBACK = (0.5, 1.0, 1.5)
"""Discounts where the counts of counts give none, those of lmplz."""


class Discounts(NamedTuple):
    """The discounts of one order for counts of 1, 2, and 3 or more; ``estimated`` is false for the fallback values."""

    one: float
    two: float
    three: float
    estimated: bool


def modified_kneser_ney(counts: NgramCounts,
                        discounts: Sequence[tuple[float, float, float]] | None = None) -> NgramTable:
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
        raise InputError(f"discounts must be {order} triples, one for each order; got {list(discounts)}.",
                         where="discounts")
    for length, triple in enumerate(discounts, start=1):
        if not all(0 <= value <= r for r, value in enumerate(triple, start=1)):
            raise InputError(f"discounts must satisfy 0 <= D_r <= r for r = 1, 2, 3; got {tuple(triple)}.",
                             where=f"discounts[{length - 1}]", remedy="Leave them out to estimate them.")
    return tuple(Discounts(*triple, False) for triple in discounts)


def _taken(adjusted: Int[np.ndarray, "G"], discounts: Discounts) -> Float[np.ndarray, "G"]:
    return np.asarray(np.array([0.0, discounts.one, discounts.two, discounts.three])[np.minimum(adjusted, 3)])


def _unigrams(adjusted: Int[np.ndarray, "base"], discounts: Discounts,
              uniform: Float[np.ndarray, "base"]) -> Float[np.ndarray, "base"]:
    """Unigrams, interpolated with the uniform distribution."""
    taken, total = _taken(adjusted, discounts), adjusted.sum()
    return np.asarray((adjusted - taken) / total + taken.sum() / total * uniform)


def _level(counts: NgramCounts, length: int, discounts: Discounts,
           shorter: Float[np.ndarray, "S"]) -> tuple[Float[np.ndarray, "G"], Float[np.ndarray, "C"]]:
    """Probabilities of one length and the weights of their contexts, from the probabilities one length down."""
    adjusted, parents = adjusted_counts(counts, length), counts.parents(length)
    taken = _taken(adjusted, discounts)
    totals = counts.per_context(length, adjusted)
    weight = divide(counts.per_context(length, taken), totals)
    prob = (adjusted - taken) / totals[parents] + weight[parents] * shorter[counts.levels[length - 1].suffix]
    return prob, weight


KATZ_CUTOFF = 5
"""Counts above this are not discounted (Katz 1987)."""


def counts_of_counts(counts: Int[np.ndarray, "G"], highest: int) -> Int[np.ndarray, "R"]:
    """n_r, the number of n-grams that occur exactly r times, for r = 0 .. highest (n_0 is given as 0)."""
    found = np.bincount(np.minimum(counts, highest + 1), minlength=highest + 2)[: highest + 1]
    found[0] = 0
    return found


def assemble(counts: NgramCounts, probs: Sequence[Float[np.ndarray, "G"]],
             weights: Sequence[Float[np.ndarray, "G"]]) -> NgramTable:
    """A table from probabilities of every length and back-off weights of every length but the last.

    A context after which no word was counted has the back-off weight 1, whatever ``weights`` holds.
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


def maximum_likelihood(counts: NgramCounts) -> NgramTable:
    """Relative frequencies, unsmoothed.

        p(w | c) = C(c w) / sum_v C(c v)

    A word that never follows a counted context has probability 0 (-inf in nats), which makes a text's perplexity
    infinite. After a context without counts the quotient is 0/0; the table then uses the longest suffix of the context
    that has counts, so that every distribution sums to one.

    Jurafsky & Martin, Speech and Language Processing, 3rd ed., chapter 3; Chen & Goodman 1998, section 2.
    """
    unigrams = counts.levels[0].counts
    probs = [unigrams / unigrams.sum()]
    for length in range(2, counts.order + 1):
        raw = counts.levels[length - 1].counts
        probs.append(raw / counts.per_context(length, raw)[counts.parents(length)])
    return assemble(counts, probs, [np.zeros(len(level.keys)) for level in counts.levels])


def add_k(counts: NgramCounts, k: float) -> NgramTable:
    """Additive smoothing: k is added to every count; k = 1 is Laplace's rule.

        p(w | c) = (C(c w) + k) / (sum_v C(c v) + k V)

    V counts the symbols that can be predicted (not the start symbol). A context without counts gives 1/V.
    Only n-grams of the full order count, and the shorter ones at a document's start.

    Chen & Goodman 1998, section 2.1, where k is called delta.

    Raises:
        InputError: k not above 0 or not finite.
    """
    if not (k > 0 and np.isfinite(k)):
        raise InputError(f"k must be a finite number above 0; got {k}.", where="k",
                         remedy="Use maximum likelihood for k = 0.")
    size = int(counts.predicted.sum())
    uniform = counts.predicted / size
    if counts.order == 1:
        raw = counts.levels[0].counts
        return assemble(counts, [np.where(counts.predicted, (raw + k) / (raw.sum() + k * size), 0.0)], [])
    probs, weights = [uniform], []
    for length in range(2, counts.order + 1):
        prob, weight = _add_k_level(counts, length, k, size)
        probs.append(prob)
        weights.append(weight)
    return assemble(counts, probs, weights)


def _add_k_level(counts: NgramCounts, length: int, k: float,
                 size: int) -> tuple[Float[np.ndarray, "G"], Float[np.ndarray, "C"]]:
    raw, parents = counts.levels[length - 1].counts, counts.parents(length)
    totals = counts.per_context(length, raw) + k * size
    prob, weight = (raw + k) / totals[parents], k * size / totals
    if length == counts.order:
        return prob, weight
    return np.where(counts.starts(length), prob, 1 / size), np.where(counts.starts(length - 1), weight, 1.0)


def katz(counts: NgramCounts) -> NgramTable:
    """Katz back-off: counted n-grams are discounted, and the freed mass goes to the others in proportion to the lower
    order.

        p(w | c) = (r - d(r)) / R            r = C(c w) > 0,  R = sum_v C(c v)
                 = alpha(c) p(w | c')        r = 0;  alpha makes the distribution sum to one

    The discount of an order is Good-Turing's for r <= 5 and 0 above (Katz 1987; Chen & Goodman 1998, section 2.4):

        r - d(r) = r (r*/r - a) / (1 - a),   r* = (r+1) n_{r+1} / n_r,   a = 6 n_6 / n_1

    Where that does not lie strictly between 0 and r for each r <= 5 (small or very regular corpora), the order uses
    absolute discounting instead, d = n_1 / (n_1 + 2 n_2) (Ney, Essen & Kneser 1994), and d = 1/2 if n_1 or n_2 is 0.
    Words without counts share the mass that unigrams free in equal parts.

    Two cases that the paper leaves open: a context whose counts all exceed 5 frees no mass, so its R is raised by one
    (as SRILM does); a context followed by every word is not discounted. Unlike SRILM's default, n-grams of order 3
    and more with a count of 1 are kept.
    """
    prob = _katz_unigrams(counts)
    probs, weights = [prob], []
    for length in range(2, counts.order + 1):
        prob, weight = _katz_level(counts, length, prob)
        probs.append(prob)
        weights.append(weight)
    return assemble(counts, probs, weights)


def katz_discounts(counts: Int[np.ndarray, "G"]) -> Float[np.ndarray, "R"]:
    """The discount of a count r in Katz back-off: entry r for r = 0 .. 5, the last entry for all larger counts."""
    found = counts_of_counts(counts, KATZ_CUTOFF + 1)
    r = np.arange(1, KATZ_CUTOFF + 1)
    if _good_turing_holds(found):
        common = (KATZ_CUTOFF + 1) * found[-1] / found[1]
        kept = ((r + 1) * found[2:] / found[1:-1] - common * r) / (1 - common)
        return np.concatenate([[0.0], r - kept, [0.0]])
    absolute = found[1] / (found[1] + 2 * found[2]) if found[1] > 0 and found[2] > 0 else 0.5
    return np.concatenate([[0.0], np.full(KATZ_CUTOFF + 1, absolute)])


def _good_turing_holds(found: Int[np.ndarray, "R"]) -> bool:
    """Whether 0 < d(r) < r for every r up to the cutoff, computed in integers, so that rounding cannot decide."""
    n = [int(value) for value in found]
    last = (KATZ_CUTOFF + 1) * n[-1]
    below = all((r + 1) * n[r + 1] < r * n[r] for r in range(1, KATZ_CUTOFF + 1))
    above = all((r + 1) * n[r + 1] * n[1] > last * r * n[r] for r in range(1, KATZ_CUTOFF + 1))
    return last < n[1] and below and above


def _katz_unigrams(counts: NgramCounts) -> Float[np.ndarray, "base"]:
    raw = counts.levels[0].counts
    unseen = counts.predicted & (raw == 0)
    if not unseen.any():
        return np.asarray(raw / raw.sum())
    taken = katz_discounts(raw)[np.minimum(raw, KATZ_CUTOFF + 1)]
    freed = taken.sum() or 1.0
    total = raw.sum() + (0.0 if taken.any() else 1.0)
    return np.asarray(np.where(unseen, freed / total / unseen.sum(), (raw - taken) / total))


def _katz_level(counts: NgramCounts, length: int,
                shorter: Float[np.ndarray, "S"]) -> tuple[Float[np.ndarray, "G"], Float[np.ndarray, "C"]]:
    """Probabilities of one length and the weights of their contexts, from the probabilities one length down."""
    level, parents = counts.levels[length - 1], counts.parents(length)
    complete = counts.per_context(length, None) == counts.predicted.sum()
    taken = katz_discounts(level.counts)[np.minimum(level.counts, KATZ_CUTOFF + 1)] * ~complete[parents]
    freed = counts.per_context(length, taken)
    totals = counts.per_context(length, level.counts)
    nothing_freed = (freed == 0) & ~complete
    freed, totals = freed + nothing_freed, totals + nothing_freed
    listed = counts.per_context(length, shorter[level.suffix])
    weight = divide(freed, totals * np.where(complete, 1.0, 1.0 - listed))
    return (level.counts - taken) / totals[parents], weight

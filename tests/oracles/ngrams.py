"""The textbook formulas over dictionaries: slow, obvious, and sharing no code with the fast form.

Documents are lists of ids, ``words`` the ids that can be predicted, a context a tuple of earlier words, oldest first,
that may begin with one ``START``. Every function gives p(word | context) as a plain number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

START = -1
Gram = tuple[int, ...]


class NaiveNgrams:
    """Counts of all n-grams up to an order and the estimators of this package, one method each."""

    def __init__(self, documents: Sequence[Sequence[int]], order: int, words: Sequence[int]) -> None:
        self.order, self.words = order, tuple(words)
        self.counts: Counter[Gram] = Counter()
        for document in documents:
            padded = (START, *document)
            for end in range(2, len(padded) + 1):
                for begin in range(max(0, end - order), end):
                    self.counts[padded[begin:end]] += 1
        self.counts_of_counts = {
            length: Counter(count for gram, count in self.counts.items() if len(gram) == length)
            for length in range(1, order + 1)
        }

    def _trim(self, context: Gram) -> Gram:
        return context[max(0, len(context) - (self.order - 1)) :]

    def _after(self, context: Gram, counts: Counter[Gram]) -> dict[int, int]:
        return {gram[-1]: count for gram, count in counts.items() if gram[:-1] == context}

    def maximum_likelihood(self, word: int, context: Gram) -> float:
        """C(c w) / C(c .), for the longest suffix of the context that was counted."""
        context = self._trim(context)
        while not self._after(context, self.counts):
            context = context[1:]
        after = self._after(context, self.counts)
        return after.get(word, 0) / sum(after.values())

    def add_k(self, word: int, context: Gram, k: float) -> float:
        """(C(c w) + k) / (C(c .) + k V)."""
        context = self._trim(context)
        full = len(context) == self.order - 1 or context[:1] == (START,)
        after = self._after(context, self.counts) if full else {}
        return (after.get(word, 0) + k) / (sum(after.values()) + k * len(self.words))

    def _katz_kept(self, count: int, length: int) -> float:
        """The count after Katz's discount of n-grams of this length."""
        n = self.counts_of_counts[length]
        if all(n[r] > 0 for r in range(1, 7)) and n[1] > 6 * n[6]:
            a = Fraction(6 * n[6], n[1])
            kept = {r: r * (Fraction((r + 1) * n[r + 1], r * n[r]) - a) / (1 - a) for r in range(1, 6)}
            if all(0 < kept[r] < r for r in kept):
                return float(kept.get(count, count))
        return count - (n[1] / (n[1] + 2 * n[2]) if n[1] and n[2] else 0.5)

    def katz(self, word: int, context: Gram) -> float:
        """(r - d) / R where c w was counted, else alpha(c) p(w | c')."""
        context = self._trim(context)
        after = self._after(context, self.counts)
        if not after:
            return self.katz(word, context[1:])
        total: float = sum(after.values())
        if len(after) == len(self.words):
            return after[word] / total
        kept = {w: self._katz_kept(count, len(context) + 1) for w, count in after.items()}
        if all(kept[w] == after[w] for w in after):
            total += 1
        if word in kept:
            return kept[word] / total
        free = 1 - sum(kept.values()) / total
        unseen = [w for w in self.words if w not in after]
        if not context:
            return free / len(unseen)
        return free * self.katz(word, context[1:]) / sum(self.katz(w, context[1:]) for w in unseen)

    def adjusted(self, length: int) -> Counter[Gram]:
        """Kneser-Ney's counts of n-grams of this length."""
        grams = {gram: count for gram, count in self.counts.items() if len(gram) == length}
        if length == self.order:
            return Counter(grams)
        longer = [gram for gram in self.counts if len(gram) == length + 1]
        before = Counter(gram[1:] for gram in longer)
        return Counter({gram: count if gram[0] == START else before[gram] for gram, count in grams.items()})

    def discounts(self, length: int) -> tuple[float, float, float]:
        """Chen & Goodman's D_1, D_2, D_3+ of this length."""
        t = Counter(self.adjusted(length).values())
        if t[1] and t[2] and t[3]:
            y = Fraction(t[1], t[1] + 2 * t[2])
            d1, d2, d3 = 1 - 2 * y * t[2] / t[1], 2 - 3 * y * t[3] / t[2], 3 - 4 * y * t[4] / t[3]
            if 0 < d1 <= 1 and 0 < d2 <= 2 and 0 < d3 <= 3:
                return float(d1), float(d2), float(d3)
        return 0.5, 1.0, 1.5

    def kneser_ney(self, word: int, context: Gram) -> float:
        """(a(c w) - D) / A(c) + g(c) p(w | c'), ending in the uniform distribution."""
        context = self._trim(context)
        lower = self.kneser_ney(word, context[1:]) if context else 1 / len(self.words)
        after = self._after(context, self.adjusted(len(context) + 1))
        if not after:
            return lower
        d = self.discounts(len(context) + 1)
        total = sum(after.values())
        taken = {w: d[min(count, 3) - 1] for w, count in after.items()}
        return (after.get(word, 0) - taken.get(word, 0)) / total + sum(taken.values()) / total * lower

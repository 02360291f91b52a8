"""A back-off table of n-gram probabilities, with vectorised look-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from weft.core.errors import InputError
from weft.ngram.counts import sort_places


@dataclass(frozen=True)
class TableLevel:
    """Probabilities of the n-grams of one length, in nats.

    Attributes:
        keys: [G] sorted; ``id of the first k-1 words * (vocab_size + 1) + last word``; for k = 1, 0 .. vocab_size.
        log_prob: [G] log p(last word | first k-1 words).
        backoff: [G] log of the back-off weight of the n-gram as a context; empty at the highest order.
    """

    keys: Int[np.ndarray, "G"]
    log_prob: Float[np.ndarray, "G"]
    backoff: Float[np.ndarray, "G"]


@dataclass(frozen=True)
class NgramTable:
    """An n-gram model in back-off form: every estimator in this package, and every ARPA file, is one.

        p(w | c) = p_table(c w)               if the n-gram c w is listed
                 = backoff(c) * p(w | c')     otherwise; c' is c without its first word, backoff 1 if c is not listed

    Contexts are the last words, oldest first; a context at a document's start holds start symbols (one or more are
    equivalent), and a context may be shorter than order-1. Symbols that cannot follow have log-probability -inf.

    Attributes:
        order: n; the state of the model is the last n-1 tokens.
        vocab_size: V; distributions have V entries.
        bos: the start symbol's id, V when it stands outside the vocabulary; it never has probability.
        levels: one :class:`TableLevel` per length 1 .. order.
    """

    order: int
    vocab_size: int
    bos: int
    levels: tuple[TableLevel, ...]

    @property
    def base(self) -> int:
        """Radix of the keys: every id and the start symbol."""
        return self.vocab_size + 1

    def log_prob(self, contexts: Int[np.ndarray, "M C"], targets: Int[np.ndarray, "M"]) -> Float[np.ndarray, "M"]:
        """log p(targets[m] | contexts[m]) in nats; only the last order-1 columns of ``contexts`` count. Raises
        `InputError`: ids outside the vocabulary (contexts may also hold the start symbol), or unequal lengths."""
        contexts = self._check_contexts(contexts)
        targets = np.asarray(targets)
        if targets.shape != (len(contexts),):
            raise InputError(f"targets must have shape ({len(contexts)},), one per context; got {targets.shape}.",
                             where="targets")
        self._check_range(targets, self.vocab_size, "targets")
        result: Float[np.ndarray, "M"] = self.levels[0].log_prob[targets]
        for length in range(1, contexts.shape[1] + 1):
            ids = self._context_ids(contexts, length)
            result = self._step(length, ids, find(self.levels[length].keys, ids, targets, self.base), result)
        return result

    def log_distribution(self, contexts: Int[np.ndarray, "M C"]) -> Float[np.ndarray, "M V"]:
        """log p(. | contexts[m]) for the whole vocabulary in O(M V), for decoding. Raises `InputError`: ids outside the
        vocabulary (contexts may also hold the start symbol)."""
        contexts = self._check_contexts(contexts)
        result = np.tile(self.levels[0].log_prob[: self.vocab_size], (len(contexts), 1))
        for length in range(1, contexts.shape[1] + 1):
            ids = self._context_ids(contexts, length)
            rows = np.flatnonzero(ids >= 0)
            result[rows] += self.levels[length - 1].backoff[ids[rows], None]
            self._write_listed(result, rows, ids[rows], self.levels[length])
        return result

    def _step(self, length: int, context: Int[np.ndarray, "M"], found: Int[np.ndarray, "M"],
              shorter: Float[np.ndarray, "M"]) -> Float[np.ndarray, "M"]:
        """p given contexts of this length from p given contexts one shorter; ids are -1 where an n-gram is not
        listed."""
        if not np.any(context >= 0):
            return shorter
        backed_off = shorter + np.where(context >= 0, self.levels[length - 1].backoff[context], 0.0)
        if not np.any(found >= 0):
            return backed_off
        return np.where(found >= 0, self.levels[length].log_prob[found], backed_off)

    def _context_ids(self, contexts: Int[np.ndarray, "M C"], length: int) -> Int[np.ndarray, "M"]:
        """Ids of the last ``length`` words of each context, -1 where they are not listed."""
        words = contexts[:, contexts.shape[1] - length :]
        return chain(self.levels, words, self.base)

    def _write_listed(self, result: Float[np.ndarray, "M V"], rows: Int[np.ndarray, "R"], ids: Int[np.ndarray, "R"],
                      level: TableLevel) -> None:
        """Overwrite the entries of ``result`` for the n-grams that are listed after each context."""
        first = np.searchsorted(level.keys, ids * self.base)
        lengths = np.searchsorted(level.keys, (ids + 1) * self.base) - first
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        entries = np.repeat(first, lengths) + within
        words = level.keys[entries] % self.base
        keep = words < self.vocab_size
        result[np.repeat(rows, lengths)[keep], words[keep]] = level.log_prob[entries[keep]]

    def _check_contexts(self, contexts: Int[np.ndarray, "M C"]) -> Int[np.ndarray, "M C"]:
        contexts = np.asarray(contexts)
        if contexts.ndim != 2:
            raise InputError(f"contexts must have two dimensions, [rows, words]; got shape {contexts.shape}.",
                             where="contexts")
        used = contexts[:, max(contexts.shape[1] - (self.order - 1), 0) :]
        self._check_range(used, max(self.vocab_size, self.bos + 1), "contexts")
        return used.astype(np.int64)

    def _check_range(self, ids: Int[np.ndarray, "..."], limit: int, where: str) -> None:
        if ids.size and (ids.dtype.kind not in "iu" or int(ids.min()) < 0 or int(ids.max()) >= limit):
            raise InputError(
                f"ids must be integers in 0 .. {limit - 1}; got {ids.dtype} from {ids.min()} to {ids.max()}.",
                where=where,
                remedy="Use the vocabulary that the n-grams were counted with.",
            )

def find(keys: Int[np.ndarray, "G"], contexts: Int[np.ndarray, "M"], words: Int[np.ndarray, "M"],
         base: int) -> Int[np.ndarray, "M"]:
    """Indices in ``keys`` of (context, word), -1 where the pair is not listed or the context is -1."""
    found = np.full(len(contexts), -1)
    rows = np.flatnonzero(contexts >= 0)
    if not len(keys) or not len(rows):
        return found
    # Sorted queries access memory in order: the search is four times faster on large tables.
    queries, places = sort_places(contexts[rows] * base + words[rows], (int(contexts.max()) + 1) * base)
    hits = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    found[rows[places]] = np.where(keys[hits] == queries, hits, -1)
    return found


def chain(levels: Sequence[TableLevel], words: Int[np.ndarray, "M k"], base: int) -> Int[np.ndarray, "M"]:
    """Ids of the k-grams ``words``, one per row, -1 where they are not listed."""
    ids = words[:, 0]
    for place in range(1, words.shape[1]):
        ids = find(levels[place].keys, ids, words[:, place], base)
    return ids


def spell(levels: Sequence[TableLevel], ids: Int[np.ndarray, "M"], length: int, base: int) -> Int[np.ndarray, "M k"]:
    """The words of the n-grams with these ids at this length, oldest first."""
    words = np.empty((len(ids), length), dtype=np.int64)
    for place in range(length - 1, -1, -1):
        keys = levels[place].keys[ids]
        ids, words[:, place] = keys // base, keys % base
    return words

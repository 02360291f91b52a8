"""Counts of all n-grams up to an order, as sorted arrays.

Token arrays cut into documents, each with one start symbol before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from weft.core.errors import InputError


class RankedKeys(NamedTuple):
    """Distinct keys in rising order, the rank of each input key, and how often each distinct key occurs."""

    keys: Int[np.ndarray, "G"]
    ranks: Int[np.ndarray, "N"]
    counts: Int[np.ndarray, "G"]


def sort_places(keys: Int[np.ndarray, "N"], bound: int) -> tuple[Int[np.ndarray, "N"], Int[np.ndarray, "N"]]:
    """The keys (0 <= key < bound) in rising order, and the index of each in the input.

    NumPy sorts integers several times faster than it computes their order (``argsort``), so key and index are sorted as
    one integer wherever both fit into 63 bits: with 10 million keys, for keys of up to 39 bits.
    """
    shift = len(keys).bit_length()
    if bound.bit_length() + shift > 63:
        places = np.argsort(keys, kind="stable")
        return keys[places], places
    packed = (keys << shift) | np.arange(len(keys))
    packed.sort()
    return packed >> shift, packed & ((1 << shift) - 1)


def rank(keys: Int[np.ndarray, "N"], bound: int) -> RankedKeys:
    """Number the distinct keys (0 <= key < bound) in rising order."""
    ordered, places = sort_places(keys, bound)
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    ranks = np.empty(len(ordered), dtype=np.int64)
    ranks[places] = np.cumsum(first) - 1
    starts = np.flatnonzero(first)
    return RankedKeys(ordered[starts], ranks, np.diff(np.append(starts, len(ordered))))


@dataclass(frozen=True)
class CountLevel:
    """The n-grams of one length k, sorted; an n-gram's place is its id.

    Attributes:
        keys: [G] ``id of the first k-1 words * (vocab_size + 1) + last word``; for k = 1 simply 0 .. vocab_size.
        counts: [G] occurrences (int64). The start symbol's own count as a word is 0.
        suffix: [G] id, one level down, of the last k-1 words; empty for k = 1.
    """

    keys: Int[np.ndarray, "G"]
    counts: Int[np.ndarray, "G"]
    suffix: Int[np.ndarray, "G"]


@dataclass(frozen=True)
class NgramCounts:
    """Counts of every n-gram of length 1 .. order.

    Attributes:
        order: n, the longest length counted.
        vocab_size: V; ids are 0 .. V-1.
        bos: id of the start symbol, V when it stands outside the vocabulary.
        levels: one :class:`CountLevel` per length.
    """

    order: int
    vocab_size: int
    bos: int
    levels: tuple[CountLevel, ...]

    @property
    def base(self) -> int:
        """Radix of the keys: every id and the start symbol."""
        return self.vocab_size + 1

    @property
    def predicted(self) -> Bool[np.ndarray, "base"]:
        """Which symbols can be predicted: the vocabulary without the start symbol."""
        return ~np.isin(np.arange(self.base), (self.bos, self.vocab_size))

    def parents(self, length: int) -> Int[np.ndarray, "G"]:
        """Ids, one level down, of the contexts of all n-grams of this length (at least 2)."""
        return np.asarray(self.levels[length - 1].keys // self.base)

    def per_context(self, length: int, values: Float[np.ndarray, "G"] | None) -> Float[np.ndarray, "C"]:
        """Sum ``values`` (None: ones) of the n-grams of this length over each context."""
        return np.bincount(self.parents(length), weights=values, minlength=len(self.levels[length - 2].keys))

    def starts(self, length: int) -> Bool[np.ndarray, "G"]:
        """Which n-grams of this length begin with the start symbol."""
        found: Bool[np.ndarray, "G"] = np.arange(self.base) == self.bos
        for k in range(2, length + 1):
            found = found[self.parents(k)]
        return found


def count_ngrams(tokens: Int[np.ndarray, "N"], begins: Bool[np.ndarray, "N"] | None, *, order: int, vocab_size: int,
                 bos: int | None = None) -> NgramCounts:
    """Count all n-grams of length 1 .. order, never across a document's start.

    Each document is preceded by the start symbol, which is context only. An n-gram holds at most one of them, as in
    SRILM and lmplz: the first word of a document is counted once at every length up to 2 (``<s> w``), the second up
    to 3, and so on. An end symbol, where there is one, is an ordinary token that the caller has put into ``tokens``.

    The work is one sort of N integers per length: a k-gram's key is built from the rank of its first k-1 words, so
    that a 64-bit key serves any order and vocabulary. Time O(order * N log N), memory O(order * distinct n-grams).

    Args:
        tokens: ids of all documents laid end to end, any integer dtype.
        begins: true at the first token of each document; None: one document.
        order: n, at least 1.
        vocab_size: V; symbols without a count are still part of every smoothed distribution.
        bos: the start symbol's id if it lies in the vocabulary (it then never gets probability); None: outside it.

    Raises:
        InputError: no tokens, an impossible order, ids outside the vocabulary, ``begins`` of another length or type.
    """
    start = _check_setting(order, vocab_size, bos)
    stream = pad_documents(tokens, begins, start, vocab_size)
    if not len(stream.token_places):
        raise InputError("there are no tokens to count.", where="tokens", remedy="Give at least one document.")
    levels = [_unigrams(stream, vocab_size + 1)]
    ids = stream.symbols
    for length in range(2, order + 1):
        level, ids = _next_level(stream, ids, length, vocab_size + 1, len(levels[-1].keys))
        levels.append(level)
    return NgramCounts(order, vocab_size, start, tuple(levels))


def _check_setting(order: int, vocab_size: int, bos: int | None) -> int:
    if order < 1:
        raise InputError(f"order must be at least 1; got {order}.", where="order", remedy="5 is usual.")
    if vocab_size < 1:
        raise InputError(f"vocab_size must be at least 1; got {vocab_size}.", where="vocab_size")
    if bos is not None and not 0 <= bos <= vocab_size:
        raise InputError(f"bos must lie in 0 .. {vocab_size}; got {bos}.", where="bos",
                         remedy="Leave it out for one outside.")
    return vocab_size if bos is None else bos


def _unigrams(stream: Stream, base: int) -> CountLevel:
    counts = np.bincount(stream.symbols[stream.token_places], minlength=base)
    return CountLevel(np.arange(base), counts, np.empty(0, dtype=np.int64))


def _next_level(stream: Stream, ids: Int[np.ndarray, "P"], length: int, base: int,
                contexts: int) -> tuple[CountLevel, Int[np.ndarray, "P"]]:
    """Count the n-grams of this length; ``ids`` name one of ``contexts`` (length-1)-grams that ends at each place."""
    ends = np.flatnonzero(stream.depth >= length - 1)
    ranked = rank(ids[ends - 1] * base + stream.symbols[ends], contexts * base)
    suffix = np.empty(len(ranked.keys), dtype=np.int64)
    suffix[ranked.ranks] = ids[ends]
    next_ids = np.full(len(ids), -1)
    next_ids[ends] = ranked.ranks
    return CountLevel(ranked.keys, ranked.counts, suffix), next_ids


class Stream(NamedTuple):
    """Documents laid end to end, a start symbol before each.

    Attributes:
        symbols: [P] ids, P = tokens + documents; the start symbol has an id that no token has.
        depth: [P] index within the document; the start symbol has 0. A k-gram ends at p when depth[p] >= k-1.
        token_places: [N] index of each original token in ``symbols``.
    """

    symbols: Int[np.ndarray, "P"]
    depth: Int[np.ndarray, "P"]
    token_places: Int[np.ndarray, "N"]


def pad_documents(tokens: Int[np.ndarray, "N"], begins: Bool[np.ndarray, "N"] | None, bos: int,
                  vocab_size: int) -> Stream:
    """Put one start symbol before every document.

    One start symbol carries as much information as n-1: an n-gram with two would only repeat the shorter one.

    Args:
        tokens: ids in 0 .. vocab_size-1, none equal to ``bos``.
        begins: true where a document starts; the first token always starts one. None: a single document.

    Raises:
        InputError: tokens that are not integers in range, or ``begins`` of another length or type.
    """
    ids = check_ids(tokens, vocab_size, bos)
    first = np.zeros(len(ids), dtype=bool) if begins is None else check_begins(begins, len(ids))
    starts = np.flatnonzero(first[1:]) + 1
    starts = np.concatenate([np.zeros(min(len(ids), 1), dtype=np.int64), starts])
    symbols = np.insert(ids, starts, bos)
    start_places = starts + np.arange(len(starts))
    lengths = np.diff(np.append(start_places, len(symbols)))
    depth = np.arange(len(symbols)) - np.repeat(start_places, lengths)
    return Stream(symbols, depth, np.flatnonzero(depth > 0))


def check_ids(tokens: Int[np.ndarray, "N"], vocab_size: int, bos: int) -> Int[np.ndarray, "N"]:
    """Return ``tokens`` as int64 after checking them. Raises `InputError`: not one-dimensional, not integers, outside
    the vocabulary, or the start symbol itself."""
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise InputError(f"tokens must have one dimension; got shape {array.shape}.", where="tokens", remedy="Flatten.")
    if array.size and array.dtype.kind not in "iu":
        raise InputError(f"tokens must be integers; got {array.dtype}.", where="tokens",
                         remedy="Give the tokenizer's ids.")
    ids = array.astype(np.int64)
    wrong = np.flatnonzero((ids < 0) | (ids >= vocab_size) | (ids == bos))
    if len(wrong):
        token = int(ids[wrong[0]])
        told = (f"the start symbol {bos} cannot be a token to count or score." if token == bos and token < vocab_size
                else f"ids must lie in 0 .. {vocab_size - 1}; got {token}.")
        raise InputError(told, where=f"tokens[{wrong[0]}]", remedy=_REMEDY)
    return ids


_REMEDY = "Check that the tokens come from this vocabulary; document starts are given by begins, not as tokens."


def check_begins(begins: Bool[np.ndarray, "N"], length: int) -> Bool[np.ndarray, "N"]:
    """Return ``begins`` after checking that it fits the tokens. Raises `InputError`: not boolean, or not one entry per
    token."""
    array = np.asarray(begins)
    if array.dtype != np.bool_ or array.shape != (length,):
        raise InputError(f"begins must be {length} booleans, one per token; got {array.dtype} of shape {array.shape}.",
                         where="begins", remedy="Mark the first token of every document with True.")
    return array

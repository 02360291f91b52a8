"""Token arrays cut into documents, each with one start symbol before it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from weft.core.errors import InputError


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


def pad_documents(
    tokens: Int[np.ndarray, "N"], begins: Bool[np.ndarray, "N"] | None, bos: int, vocab_size: int
) -> Stream:
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
    """Return ``tokens`` as int64 after checking them.

    Raises:
        InputError: not one-dimensional, not integers, outside the vocabulary, or the start symbol itself.
    """
    array = np.asarray(tokens)
    if array.ndim != 1:
        raise InputError(f"tokens must have one dimension; got shape {array.shape}.", where="tokens", remedy="Flatten.")
    if array.size and array.dtype.kind not in "iu":
        raise InputError(
            f"tokens must be integers; got {array.dtype}.", where="tokens", remedy="Give the tokenizer's ids."
        )
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
    """Return ``begins`` after checking that it fits the tokens.

    Raises:
        InputError: not boolean, or not one entry per token.
    """
    array = np.asarray(begins)
    if array.dtype != np.bool_ or array.shape != (length,):
        raise InputError(
            f"begins must be {length} booleans, one per token; got {array.dtype} of shape {array.shape}.",
            where="begins",
            remedy="Mark the first token of every document with True.",
        )
    return array

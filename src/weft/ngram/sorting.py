"""Sorting keys while remembering where they stood."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int


class Ranked(NamedTuple):
    """Distinct keys in order, the rank of each key given, and how often each occurs."""

    keys: Int[np.ndarray, "G"]
    ranks: Int[np.ndarray, "N"]
    counts: Int[np.ndarray, "G"]


def sort_places(keys: Int[np.ndarray, "N"], bound: int) -> tuple[Int[np.ndarray, "N"], Int[np.ndarray, "N"]]:
    """The keys (0 <= key < bound) in order, and the place where each stood.

    NumPy sorts integers several times faster than it finds the order of them, so that key and place are sorted as
    one integer wherever both fit into 63 bits: at 10 million keys, keys of 39 bits.
    """
    shift = len(keys).bit_length()
    if bound.bit_length() + shift > 63:
        places = np.argsort(keys, kind="stable")
        return keys[places], places
    packed = (keys << shift) | np.arange(len(keys))
    packed.sort()
    return packed >> shift, packed & ((1 << shift) - 1)


def rank(keys: Int[np.ndarray, "N"], bound: int) -> Ranked:
    """Number the distinct keys (0 <= key < bound) in rising order."""
    ordered, places = sort_places(keys, bound)
    first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    ranks = np.empty(len(ordered), dtype=np.int64)
    ranks[places] = np.cumsum(first) - 1
    starts = np.flatnonzero(first)
    return Ranked(ordered[starts], ranks, np.diff(np.append(starts, len(ordered))))

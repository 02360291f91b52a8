"""A shuffled order that is computed, not stored: the place of any item follows from the seed."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64, UInt64

ROUNDS = 8
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def permute(index: Int64[np.ndarray, " n"], size: int, *, seed: int, epoch: Int64[np.ndarray, " n"]) -> np.ndarray:
    """The places of items in the order of their epoch: for each (seed, epoch) a permutation of 0..size-1.

    A balanced Feistel network over the smallest even number of bits that holds ``size``, applied again to results
    outside the range (Black and Rogaway 2002, "Ciphers with arbitrary finite domains", method 2). It takes no memory
    and constant time for each item, and does not depend on the version of a library.

    Args:
        index: items, each below ``size``.
        size: number of items.
        seed: any integer, taken modulo 2^64.
        epoch: which permutation, for each item.
    """
    bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    secrets = _mix(hashed(seed, epoch) + np.arange(ROUNDS, dtype=np.uint64)[:, None])
    value = _feistel(index.astype(np.uint64), secrets, bits)
    while (outside := np.flatnonzero(value >= size)).size:
        value[outside] = _feistel(value[outside], secrets[:, outside], bits)
    return value.astype(np.int64)


def hashed(seed: int, counter: Int64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """64 pseudo-random bits for each (seed, counter)."""
    return _mix(_mix(np.array([seed % 2**64], dtype=np.uint64)) + counter.astype(np.uint64) * GOLDEN)


def _feistel(value: np.ndarray, secrets: np.ndarray, bits: np.uint64) -> np.ndarray:
    mask = (np.uint64(1) << bits) - np.uint64(1)
    left, right = value >> bits, value & mask
    for secret in secrets:
        left, right = right, left ^ (_mix(right + secret) & mask)
    return (left << bits) | right


def _mix(value: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea and Flood 2014, figure 17)."""
    value = value + GOLDEN
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = value ^ (value >> np.uint64(31))
    return mixed

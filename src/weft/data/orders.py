"""Orders of examples: those of each step, a pure function of seed and step; and batches of examples in an order.

A shuffled order that is computed, not stored: the place of any item follows from the seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from jaxtyping import Int64, UInt64

from weft.core.errors import DataError
from weft.data.sequences import Sequences


class ExampleOrder(ABC):
    """The examples of each batch. An order that is made of no examples is refused.

    Attributes:
        rows: examples of a batch; the mean over an epoch where batches differ.
    """

    size: int
    rows: float

    @abstractmethod
    def of(self, step: int) -> Int64[np.ndarray, " B"]:
        """The indices of the examples of a step."""

    @abstractmethod
    def share(self, rows: int, rank: int, world: int) -> slice:
        """One rank's rows of a batch of so many. Raises `DataError`: ``rank`` is not below ``world``, or the ranks
        cannot share the batch."""

    @abstractmethod
    def once(self) -> list[Int64[np.ndarray, " B"]]:
        """The indices of the examples of each batch of an evaluation: each example once."""


class RowOrder(ExampleOrder):
    """As many examples in every batch, in an order of its own for each epoch, or in the order of their indices.

    A batch is B examples in the order of their epoch; where an epoch ends within a batch, the next one begins there.

    Args:
        rows: B.
        reshuffle: every epoch has its own order; False: all have the order of the first.
        where: the data's name, for messages.

    Raises:
        DataError: there is no example.
    """

    rows: int

    def __init__(self, size: int, *, rows: int, seed: int, reshuffle: bool, where: str) -> None:
        if not size:
            raise DataError("no example to train on.", where=where, remedy="Give more records.")
        self.size, self.rows, self.seed, self.reshuffle = size, rows, seed, reshuffle

    def of(self, step: int) -> Int64[np.ndarray, " B"]:
        samples = step * self.rows + np.arange(self.rows, dtype=np.int64)
        return in_epochs(samples, self.size, seed=self.seed, reshuffle=self.reshuffle)[0]

    def share(self, rows: int, rank: int, world: int) -> slice:
        return share_of(rows, rank, world)

    def once(self) -> list[Int64[np.ndarray, " B"]]:
        return [np.arange(first, min(first + self.rows, self.size)) for first in range(0, self.size, self.rows)]


def in_epochs(samples: Int64[np.ndarray, " n"], size: int, *, seed: int, reshuffle: bool) -> tuple[
        Int64[np.ndarray, " n"], Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """The items that stand at the places ``samples`` of an endless order in which each of ``size`` items comes once in
    every epoch; the epoch whose order that is; and the epoch itself.

    Args:
        reshuffle: every epoch has its own order; False: all have the order of the first.
    """
    epoch, place = np.divmod(samples, size)
    order = epoch if reshuffle else np.zeros_like(epoch)
    return permute(place, size, seed=seed, epoch=order), order, epoch


def share_of(rows: int, rank: int, world: int) -> slice:
    """One rank's rows of a batch: consecutive rows, equally many for each rank. Raises `DataError`: ``world`` does not
    divide the rows, or ``rank`` is not below it."""
    if world < 1 or rows % world:
        raise DataError(f"{rows} rows do not divide into {world} ranks.", where="world",
                        remedy="Choose a batch size that is a multiple of the number of ranks.")
    if not 0 <= rank < world:
        raise _no_rank(rank, world)
    each = rows // world
    return slice(rank * each, (rank + 1) * each)


def _no_rank(rank: int, world: int) -> DataError:
    return DataError(f"must be from 0 to {world - 1}, received {rank}.", where="rank",
                     remedy="Give each process its own number below the number of ranks.")


class LengthOrder(ExampleOrder):
    """The examples of each batch, chosen by length: a pure function of seed and step.

    Examples are sorted by the longest of their columns, then by each column, and cut into batches, each as large as the
    budget allows in every column, padding counted: rows x longest row <= budget. Examples of the same lengths have an
    order of their own in each epoch, and so have the batches, so that every example comes once an epoch. The number of
    batches is that of every epoch, because it depends on the lengths alone. An order needs 40 bytes for each example,
    and 80 while that of another epoch is found.

    Vaswani et al. 2017, section 5.1, batch pairs of approximately the same length, approximately 25000 tokens of
    sources and as many of targets in each batch; there, padding does not count.

    Args:
        columns: rows of ids, such as sources and targets, as many in each.
        budget: tokens of a batch in each column, at most.
        reshuffle: every epoch has its own order; False: all have the order of the first.
        where: the data's name, for messages.

    Raises:
        DataError: there is no example, or one is longer than the budget.
    """

    def __init__(self, *columns: Sequences, budget: int, seed: int, reshuffle: bool, where: str) -> None:
        self.size = len(columns[0])
        if not self.size:
            raise DataError("no example to train on.", where=where, remedy="Give more records.")
        longest = max(column.longest for column in columns)
        if longest > budget:
            raise DataError(f"a row has {longest} tokens, and a batch {budget}.", where=where,
                            remedy="Give a larger budget of tokens, or shorter rows.")
        self.seed, self.reshuffle = seed, reshuffle
        lengths = np.stack([column.lengths for column in columns])
        self._keys = (*lengths[::-1], lengths.max(0))
        self._cuts = _cuts(lengths[:, np.lexsort(self._keys)], budget)
        self._epoch, self._order = -1, np.array([], dtype=np.int64)
        self.batches = len(self._cuts) - 1
        self.rows = self.size / self.batches

    def of(self, step: int) -> Int64[np.ndarray, " B"]:
        """The indices of the examples of a step, from the shortest to the longest."""
        epoch, place = divmod(step, self.batches)
        epoch = epoch if self.reshuffle else 0
        chosen = permute(np.array([place]), self.batches, seed=self.seed, epoch=np.array([epoch]))
        return self.sorted_batch(int(chosen[0]), epoch)

    def sorted_batch(self, place: int, epoch: int = 0) -> Int64[np.ndarray, " B"]:
        """The indices of the examples of the batch at ``place``, counted from the batch of the shortest."""
        if epoch != self._epoch:
            everyone = np.arange(self.size)
            ties = permute(everyone, self.size, seed=self.seed, epoch=np.full(self.size, epoch))
            self._epoch, self._order = epoch, np.lexsort((ties, *self._keys))
        found: np.ndarray = self._order[self._cuts[place]:self._cuts[place + 1]]
        return found

    def share(self, rows: int, rank: int, world: int) -> slice:
        """One rank's rows of a batch: consecutive rows, as equally many as possible for each rank; perhaps none. Raises
        `DataError`: ``rank`` is not below ``world``."""
        if not 0 <= rank < world:
            raise _no_rank(rank, world)
        return slice(rows * rank // world, rows * (rank + 1) // world)

    def once(self) -> list[Int64[np.ndarray, " B"]]:
        return [self.sorted_batch(place) for place in range(self.batches)]


def _cuts(lengths: Int64[np.ndarray, "C n"], budget: int) -> Int64[np.ndarray, " batches_and_one"]:
    """The first index of each batch of examples of these lengths, and after the last."""
    cuts, widest = [0], [0] * len(lengths)
    for place, row in enumerate(lengths.T.tolist()):
        widest = [max(pair) for pair in zip(widest, row, strict=True)]
        if (place + 1 - cuts[-1]) * max(widest) > budget:
            cuts.append(place)
            widest = row
    return np.array([*cuts, lengths.shape[1]])


ROUNDS = 8
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def permute(index: Int64[np.ndarray, " n"], size: int, *, seed: int, epoch: Int64[np.ndarray, " n"]) -> np.ndarray:
    """The places of items in the order of their epoch: for each (seed, epoch) a permutation of 0..size-1.

    A balanced Feistel network over the smallest even number of bits that holds ``size``, applied again to results
    outside the range (Black and Rogaway 2002, "Ciphers with arbitrary finite domains", method 2). It takes no memory
    and constant time for each item, and does not depend on the version of a library.

    Args:
        index: items, each below ``size``.
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

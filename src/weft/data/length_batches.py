"""Batches of rows of about the same length, as many as a budget of tokens holds."""

from __future__ import annotations

from typing import final

import numpy as np
from jaxtyping import Int64

from weft.core.errors import DataError
from weft.data.permutation import permute
from weft.data.sequences import Sequences

Rows = Int64[np.ndarray, " B"]


@final
class LengthOrder:
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
        seed: any integer.
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

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        return len(self._cuts) - 1

    @property
    def rows(self) -> float:
        """Examples of a batch, on average."""
        return self.size / self.batches

    def of(self, step: int) -> Rows:
        """The indices of the examples of a step, from the shortest to the longest."""
        epoch, place = divmod(step, self.batches)
        epoch = epoch if self.reshuffle else 0
        chosen = permute(np.array([place]), self.batches, seed=self.seed, epoch=np.array([epoch]))
        return self.sorted_batch(int(chosen[0]), epoch)

    def sorted_batch(self, place: int, epoch: int = 0) -> Rows:
        """The indices of the examples of the batch at ``place``, counted from the batch of the shortest."""
        if epoch != self._epoch:
            everyone = np.arange(self.size)
            ties = permute(everyone, self.size, seed=self.seed, epoch=np.full(self.size, epoch))
            self._epoch, self._order = epoch, np.lexsort((ties, *self._keys))
        found: np.ndarray = self._order[self._cuts[place]:self._cuts[place + 1]]
        return found

    def share(self, rows: int, rank: int, world: int) -> slice:
        """One rank's rows of a batch: consecutive rows, as equally many as possible for each rank; perhaps none.

        Raises:
            DataError: ``rank`` is not below ``world``.
        """
        if not 0 <= rank < world:
            raise DataError(f"must be from 0 to {world - 1}, received {rank}.", where="rank",
                            remedy="Give each process its own number below the number of ranks.")
        return slice(rows * rank // world, rows * (rank + 1) // world)


def _cuts(lengths: Int64[np.ndarray, "C n"], budget: int) -> Int64[np.ndarray, " batches_and_one"]:
    """The first index of each batch of examples of these lengths, and after the last."""
    cuts, widest = [0], [0] * len(lengths)
    for place, row in enumerate(lengths.T.tolist()):
        widest = [max(pair) for pair in zip(widest, row, strict=True)]
        if (place + 1 - cuts[-1]) * max(widest) > budget:
            cuts.append(place)
            widest = row
    return np.array([*cuts, lengths.shape[1]])

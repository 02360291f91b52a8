"""Batches for training, in an order that depends on the seed alone; any step can be asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import final

import numpy as np

from weft.core.errors import DataError
from weft.data.batch import Batch, cut
from weft.data.permutation import hashed, permute
from weft.data.stream import TokenStream


class Batches(ABC):
    """An endless sequence of batches; ``batch(step)`` is a pure function of the stream, the seed and the step.

    So training resumes at any step without replaying the ones before.

    Args:
        stream: the tokens, N of them.
        rows: B, rows per batch.
        length: T, inputs per row.
        seed: any integer.

    Raises:
        DataError: no row or no length, or a stream shorter than one window.
    """

    def __init__(self, stream: TokenStream, *, rows: int, length: int, seed: int = 0) -> None:
        for name, value in (("rows", rows), ("length", length)):
            if value < 1:
                raise DataError(f"must be at least 1, received {value}.", where=name, remedy="Raise it.")
        self.stream, self.rows, self.length, self.seed = stream, rows, length, seed

    @abstractmethod
    def batch(self, step: int) -> Batch:
        """The batch of that step, from 0."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> float:
        """Steps that pass over the stream once."""

    @property
    def tokens_per_batch(self) -> int:
        """B * T."""
        return self.rows * self.length

    def from_step(self, step: int) -> Iterator[Batch]:
        """The batches of ``step`` and all after it."""
        while True:
            yield self.batch(step)
            step += 1


@final
class ShuffledBatches(Batches):
    """Windows in shuffled order, each starting afresh.

    An epoch has W = (N-1) // T windows that touch but do not overlap in their targets; each comes once per epoch, in
    an order of that epoch's own. The (N-1) mod T targets left over are at either end, at a place drawn for each epoch,
    so that over epochs every token is seen and windows begin at different places.
    """

    def __init__(self, stream: TokenStream, *, rows: int, length: int, seed: int = 0) -> None:
        super().__init__(stream, rows=rows, length=length, seed=seed)
        stream.require(length + 1, f"one window of context {length}", _remedy(len(stream) - 1))
        self.windows = (len(stream) - 1) // length

    @property
    def steps_per_epoch(self) -> float:
        return self.windows / self.rows

    def batch(self, step: int) -> Batch:
        sample = step * self.rows + np.arange(self.rows, dtype=np.int64)
        epoch, place = np.divmod(sample, self.windows)
        window = permute(place, self.windows, seed=self.seed, epoch=epoch)
        return cut(self.stream, window * self.length + self._offset(epoch), self.length)

    def _offset(self, epoch: np.ndarray) -> np.ndarray:
        slack = len(self.stream) - 1 - self.windows * self.length
        return (hashed(self.seed, epoch) % np.uint64(slack + 1)).astype(np.int64)


@final
class SequentialBatches(Batches):
    """Contiguous windows, for truncated back-propagation through time with a carried state.

    The stream is cut into B lanes; row b of a step continues row b of the step before, until the lanes end and all
    start again with ``fresh`` set. Targets that do not fill a last window of every lane (fewer than B * T) are left
    out, at either end, at a place drawn for each epoch.
    """

    def __init__(self, stream: TokenStream, *, rows: int, length: int, seed: int = 0) -> None:
        super().__init__(stream, rows=rows, length=length, seed=seed)
        purpose = f"one window of context {length} in each of {rows} lanes"
        stream.require(rows * length + 1, purpose, _remedy((len(stream) - 1) // rows))
        self.windows = (len(stream) - 1) // (rows * length)

    @property
    def steps_per_epoch(self) -> float:
        return float(self.windows)

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.windows)
        lanes = np.arange(self.rows, dtype=np.int64) * (self.windows * self.length)
        starts = lanes + self._offset(epoch) + place * self.length
        return cut(self.stream, starts, self.length, fresh=place == 0)

    def _offset(self, epoch: int) -> int:
        slack = len(self.stream) - 1 - self.rows * self.windows * self.length
        return int(hashed(self.seed, np.array([epoch], dtype=np.int64))[0]) % (slack + 1)


def _remedy(longest: int) -> str:
    return "Give more text" + (f", or a context of at most {longest}." if longest > 0 else ".")

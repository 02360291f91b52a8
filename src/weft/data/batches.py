"""Batches for training, in an order that depends on the seed alone. Any step can be computed by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from jaxtyping import Int64

from weft.core.errors import DataError
from weft.data.batch import Batch, cut
from weft.data.batch_source import BatchSource, Lengths
from weft.data.orders import hashed, in_epochs, share_of
from weft.data.stream import TokenStream

B = TypeVar("B")

AHEAD = 64
"""Steps whose rows are found together."""


class Batches(BatchSource[Batch]):
    """Batches of running text; ``batch(step)`` is a pure function of the stream, the seed and the step.

    Training can therefore resume at any step without replaying the earlier ones. Rows are numbered from 0 through all
    steps: `placed` says what each of them is, and `filled` reads it.

    Args:
        stream: the tokens, N of them.
        rows: B, rows per batch.
        length: T, inputs per row.
        reshuffle: every epoch has its own order; False: all have the order of the first.

    Attributes:
        windows: rows of one pass over the stream.
        total: rows that there are; None: there is no end.

    Raises:
        DataError: ``rows`` or ``length`` is below 1, or the stream is shorter than one window.
    """

    rows: int
    windows: int
    total: int | None = None

    def __init__(self, stream: TokenStream, *, rows: int, length: int, seed: int = 0, reshuffle: bool = True) -> None:
        for name, value in (("rows", rows), ("length", length)):
            if value < 1:
                raise DataError(f"must be at least 1, received {value}.", where=name, remedy="Raise it.")
        self.stream, self.rows, self.length, self.seed, self.reshuffle = stream, rows, length, seed, reshuffle
        self._ahead: tuple[int, Int64[np.ndarray, "columns n"]] | None = None

    def batch(self, step: int, *, rank: int = 0, world: int = 1) -> Batch:
        """The batch of that step, from 0, or one rank's share of it.

        Each of ``world`` ranks takes equally many consecutive rows, so that together they have the batch of one
        process. Row b of every batch belongs to the same rank, so a carried state stays on its rank.

        Raises:
            DataError: ``world`` does not divide the rows, or ``rank`` is not below it.
        """
        return self._batch(step, share_of(self.rows, rank, world))

    def _batch(self, step: int, share: slice) -> Batch:
        """The rows ``share`` of the batch of that step."""
        return self.filled(self._planned(step)[:, share])

    def _planned(self, step: int) -> Int64[np.ndarray, "columns B"]:
        """The rows of a step, as `placed` gives them. Those of several steps are found together, since a permutation
        costs as much for one as for all."""
        first, own = step // AHEAD * AHEAD * self.rows, step * self.rows
        ahead = self._ahead
        if ahead is None or ahead[0] != first:
            last = first + AHEAD * self.rows
            last = last if self.total is None else max(first, min(last, self.total))
            self._ahead = ahead = first, self.placed(np.arange(first, last, dtype=np.int64))
        if own + self.rows > first + ahead[1].shape[1]:
            return self.placed(np.arange(own, own + self.rows, dtype=np.int64))  # raises, as not all of them exist
        return ahead[1][:, own - first:own - first + self.rows]

    @abstractmethod
    def placed(self, samples: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "columns n"]:
        """The content of the rows ``samples``, numbered from 0 through all steps, as `filled` reads it. Raises
        `DataError`: not all of them exist."""

    @abstractmethod
    def filled(self, rows: Int64[np.ndarray, "columns B"]) -> Batch:
        """The rows that `placed` has named."""

    @property
    def steps_per_epoch(self) -> float:
        """Steps of one pass over the stream."""
        return self.windows / self.rows

    @property
    def tokens_per_row(self) -> float:
        """Inputs of a row without padding; the mean over an epoch where rows differ."""
        return self.length

    @property
    def tokens_per_batch(self) -> float:
        return self.rows * self.length


class MadeOfText(BatchSource[B]):
    """Batches that are made of those of a text, each a pure function of seed and step.

    Args:
        text: the batches of running text.
        make: a batch of one of these.
        lengths: see `BatchSource`; None: those of the text.
        predicted: tokens of a row that make up `tokens_per_batch`; None: all of its tokens.
        notice: see `BatchSource`; None: that of the text.
    """

    def __init__(self, text: Batches, make: Callable[[Batch], B], *, lengths: Lengths | None = None,
                 predicted: int | None = None, notice: str | None = None) -> None:
        self.text, self.rows = text, text.rows
        self._make, self._lengths, self._predicted, self._notice = make, lengths, predicted, notice

    @property
    def steps_per_epoch(self) -> float:
        """Batches of one pass over the text."""
        return self.text.steps_per_epoch

    @property
    def tokens_per_batch(self) -> float:
        return self.text.tokens_per_batch if self._predicted is None else self.text.rows * self._predicted

    @property
    def lengths(self) -> Lengths:
        return super().lengths if self._lengths is None else self._lengths

    @property
    def notice(self) -> str | None:
        return self.text.notice if self._notice is None else self._notice

    def batch(self, step: int, *, rank: int = 0, world: int = 1) -> B:
        return self._make(self.text.batch(step, rank=rank, world=world))


class ShuffledBatches(Batches):
    """Windows in shuffled order, each starting afresh.

    An epoch has W = (N-1) // T adjacent windows whose targets do not overlap; each comes once per epoch, in an order
    of that epoch. The remaining (N-1) mod T targets are left out at both ends of the stream, split by a random offset
    for each epoch, so that over epochs every token is used and windows begin at different tokens.
    """

    def __init__(self, stream: TokenStream, *, rows: int, length: int, seed: int = 0, reshuffle: bool = True) -> None:
        super().__init__(stream, rows=rows, length=length, seed=seed, reshuffle=reshuffle)
        stream.require(length + 1, f"one window of context {length}", _remedy(len(stream) - 1))
        self.windows = (len(stream) - 1) // length

    def placed(self, samples: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "columns n"]:
        """The places at which the rows start in the stream, and their epochs."""
        window, order, epoch = in_epochs(samples, self.windows, seed=self.seed, reshuffle=self.reshuffle)
        slack = len(self.stream) - 1 - self.windows * self.length
        offset = (hashed(self.seed, order) % np.uint64(slack + 1)).astype(np.int64)
        return np.stack([window * self.length + offset, epoch])

    def filled(self, rows: Int64[np.ndarray, "columns B"]) -> Batch:
        starts, epoch = rows
        return cut(self.stream, starts, self.length, epoch=epoch)


class SequentialBatches(Batches):
    """Contiguous windows, for truncated back-propagation through time with a carried state.

    The stream is cut into B lanes; row b of a step continues row b of the step before, until the lanes end and all
    start again with ``fresh`` set. Targets that do not fill a last window of every lane (fewer than B * T) are left
    out at both ends, split by a random offset for each epoch. ``windows`` are those of a lane.
    """

    def __init__(self, stream: TokenStream, *, rows: int, length: int, seed: int = 0, reshuffle: bool = True) -> None:
        super().__init__(stream, rows=rows, length=length, seed=seed, reshuffle=reshuffle)
        purpose = f"one window of context {length} in each of {rows} lanes"
        stream.require(rows * length + 1, purpose, _remedy((len(stream) - 1) // rows))
        self.windows = (len(stream) - 1) // (rows * length)

    @property
    def steps_per_epoch(self) -> float:
        return float(self.windows)

    def placed(self, samples: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "columns n"]:
        """The places at which the rows start in the stream, their epochs, and their numbers in their lanes."""
        step, lane = np.divmod(samples, self.rows)
        epoch, place = np.divmod(step, self.windows)
        slack = len(self.stream) - 1 - self.rows * self.windows * self.length
        drawn = hashed(self.seed, epoch if self.reshuffle else np.zeros_like(epoch))
        offset = (drawn % np.uint64(slack + 1)).astype(np.int64)
        return np.stack([lane * (self.windows * self.length) + offset + place * self.length, epoch, place])

    def filled(self, rows: Int64[np.ndarray, "columns B"]) -> Batch:
        starts, epoch, place = rows
        return cut(self.stream, starts, self.length, fresh=not place.any(), epoch=epoch)


def _remedy(longest: int) -> str:
    return "Give more text" + (f", or a context of at most {longest}." if longest > 0 else ".")

"""Batches for training, in an order that depends on the seed alone. Any step can be computed by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Protocol, TypeVar, final

import numpy as np
from jaxtyping import Int64

from weft.core.errors import DataError
from weft.data.batch import Batch, cut
from weft.data.batch_source import BatchSource, Lengths
from weft.data.orders import hashed, permute, share_of
from weft.data.stream import TokenStream

B = TypeVar("B")


class Batches(BatchSource[Batch]):
    """Batches of running text; ``batch(step)`` is a pure function of the stream, the seed and the step.

    Training can therefore resume at any step without replaying the earlier ones.

    Args:
        stream: the tokens, N of them.
        rows: B, rows per batch.
        length: T, inputs per row.
        reshuffle: every epoch has its own order; False: all have the order of the first.

    Raises:
        DataError: ``rows`` or ``length`` is below 1, or the stream is shorter than one window.
    """

    rows: int

    def __init__(self, stream: TokenStream, *, rows: int, length: int, seed: int = 0, reshuffle: bool = True) -> None:
        for name, value in (("rows", rows), ("length", length)):
            if value < 1:
                raise DataError(f"must be at least 1, received {value}.", where=name, remedy="Raise it.")
        self.stream, self.rows, self.length, self.seed, self.reshuffle = stream, rows, length, seed, reshuffle

    def batch(self, step: int, *, rank: int = 0, world: int = 1) -> Batch:
        """The batch of that step, from 0, or one rank's share of it.

        Each of ``world`` ranks takes equally many consecutive rows, so that together they have the batch of one
        process. Row b of every batch belongs to the same rank, so a carried state stays on its rank.

        Raises:
            DataError: ``world`` does not divide the rows, or ``rank`` is not below it.
        """
        return self._batch(step, share_of(self.rows, rank, world))

    @abstractmethod
    def _batch(self, step: int, share: slice) -> Batch:
        """The rows ``share`` of the batch of that step."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> float:
        """Steps of one pass over the stream."""

    @property
    def tokens_per_batch(self) -> float:
        return self.rows * self.length

@final
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


class NumberedRows(Protocol):
    """Batches of which any rows can be read by their numbers, such as `ShuffledBatches`."""

    @property
    def rows_per_epoch(self) -> int:
        """Rows of one pass over the stream."""

    @property
    def tokens_per_row(self) -> float:
        """Inputs of a row without padding; the mean over an epoch where rows differ."""

    def placed(self, samples: Int64[np.ndarray, " n"]) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """The content of the rows ``samples``, numbered from 0 through all epochs, as `filled` reads it; and the epoch
        of each."""

    def filled(self, keys: Int64[np.ndarray, " B"], epoch: Int64[np.ndarray, " B"]) -> Batch:
        """The rows that `placed` has named."""


class WindowBatches(Batches):
    """Base of batches of windows that are cut from the stream without regard to documents."""

    def _batch(self, step: int, share: slice) -> Batch:
        starts, fresh = self._starts(step)
        epoch = self._epochs(step * self.rows + np.arange(self.rows, dtype=np.int64)[share])
        return cut(self.stream, starts[share], self.length, fresh=fresh, epoch=epoch)

    @abstractmethod
    def _epochs(self, samples: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"]:
        """The epochs of ``samples``: rows, numbered from 0 through all steps."""

    @abstractmethod
    def _starts(self, step: int) -> tuple[Int64[np.ndarray, " B"], bool]:
        """Where the rows of a step start in the stream, and whether they start without a state."""


AHEAD = 64
"""Steps whose windows are computed together."""


@final
class ShuffledBatches(WindowBatches):
    """Windows in shuffled order, each starting afresh.

    An epoch has W = (N-1) // T adjacent windows whose targets do not overlap; each comes once per epoch, in an order
    of that epoch. The remaining (N-1) mod T targets are left out at both ends of the stream, split by a random offset
    for each epoch, so that over epochs every token is used and windows begin at different tokens.
    """

    def __init__(self, stream: TokenStream, *, rows: int, length: int, seed: int = 0, reshuffle: bool = True) -> None:
        super().__init__(stream, rows=rows, length=length, seed=seed, reshuffle=reshuffle)
        stream.require(length + 1, f"one window of context {length}", _remedy(len(stream) - 1))
        self.windows = (len(stream) - 1) // length
        self._ahead: tuple[int, Int64[np.ndarray, "steps B"]] | None = None

    @property
    def steps_per_epoch(self) -> float:
        return self.windows / self.rows

    def _epochs(self, samples: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"]:
        return samples // self.windows

    def _starts(self, step: int) -> tuple[Int64[np.ndarray, " B"], bool]:
        block, place = divmod(step, AHEAD)
        if self._ahead is None or self._ahead[0] != block:
            self._ahead = block, self._starts_of(block * AHEAD)
        return self._ahead[1][place], True

    def _starts_of(self, first: int) -> Int64[np.ndarray, "steps B"]:
        """The starts of the rows of several steps from ``first`` on: a permutation costs as much for one as for all."""
        starts, _ = self.placed(first * self.rows + np.arange(AHEAD * self.rows, dtype=np.int64))
        return starts.reshape(AHEAD, self.rows)

    @property
    def rows_per_epoch(self) -> int:
        """See `NumberedRows`."""
        return self.windows

    @property
    def tokens_per_row(self) -> float:
        """See `NumberedRows`."""
        return self.length

    def placed(self, samples: Int64[np.ndarray, " n"]) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """The places at which the rows ``samples`` start in the stream, and their epochs."""
        epoch, place = np.divmod(samples, self.windows)
        order = epoch if self.reshuffle else np.zeros_like(epoch)
        window = permute(place, self.windows, seed=self.seed, epoch=order)
        return window * self.length + self._offset(order), epoch

    def filled(self, keys: Int64[np.ndarray, " B"], epoch: Int64[np.ndarray, " B"]) -> Batch:
        """The windows that start at ``keys``."""
        return cut(self.stream, keys, self.length, epoch=epoch)

    def _offset(self, epoch: np.ndarray) -> np.ndarray:
        slack = len(self.stream) - 1 - self.windows * self.length
        return (hashed(self.seed, epoch) % np.uint64(slack + 1)).astype(np.int64)


@final
class SequentialBatches(WindowBatches):
    """Contiguous windows, for truncated back-propagation through time with a carried state.

    The stream is cut into B lanes; row b of a step continues row b of the step before, until the lanes end and all
    start again with ``fresh`` set. Targets that do not fill a last window of every lane (fewer than B * T) are left
    out at both ends, split by a random offset for each epoch.
    """

    def __init__(self, stream: TokenStream, *, rows: int, length: int, seed: int = 0, reshuffle: bool = True) -> None:
        super().__init__(stream, rows=rows, length=length, seed=seed, reshuffle=reshuffle)
        purpose = f"one window of context {length} in each of {rows} lanes"
        stream.require(rows * length + 1, purpose, _remedy((len(stream) - 1) // rows))
        self.windows = (len(stream) - 1) // (rows * length)

    @property
    def steps_per_epoch(self) -> float:
        return float(self.windows)

    def _epochs(self, samples: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"]:
        return samples // (self.rows * self.windows)

    def _starts(self, step: int) -> tuple[Int64[np.ndarray, " B"], bool]:
        epoch, place = divmod(step, self.windows)
        lanes = np.arange(self.rows, dtype=np.int64) * (self.windows * self.length)
        starts = lanes + self._offset(epoch if self.reshuffle else 0) + place * self.length
        return starts, place == 0

    def _offset(self, epoch: int) -> int:
        slack = len(self.stream) - 1 - self.rows * self.windows * self.length
        return int(hashed(self.seed, np.array([epoch], dtype=np.int64))[0]) % (slack + 1)


def _remedy(longest: int) -> str:
    return "Give more text" + (f", or a context of at most {longest}." if longest > 0 else ".")

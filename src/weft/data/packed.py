"""Batches of whole documents, packed into rows."""

from __future__ import annotations

from typing import final

import numpy as np
from jaxtyping import Int64

from weft.core.errors import DataError
from weft.data.batch import Batch
from weft.data.batches import Batches
from weft.data.packing import best_fit, pieces_of
from weft.data.permutation import permute
from weft.data.stream import TokenStream


@final
class PackedBatches(Batches):
    """Rows of whole documents, in shuffled order, each starting afresh.

    A document that fits into a row is never cut; a longer one is cut into full rows and a rest. Every piece is a
    document in its row, so nothing is read across its borders. Which pieces share a row depends on the stream and T
    alone; each row comes once per epoch, in an order of that epoch, so every token that can be predicted is scored once
    per epoch. Rows that are not full end in padding, which is never scored.

    Args:
        stream: the tokens.
        rows: B, rows per batch.
        length: T, inputs of a row at most.
        seed: any integer.
        reshuffle: every epoch has its own order; False: all have the order of the first.

    Raises:
        DataError: ``rows`` or ``length`` is below 1, or no document has a token to predict.
    """

    def __init__(self, stream: TokenStream, *, rows: int, length: int, seed: int = 0, reshuffle: bool = True) -> None:
        super().__init__(stream, rows=rows, length=length, seed=seed, reshuffle=reshuffle)
        pieces = pieces_of(stream, length)
        if not pieces.documents:
            raise DataError("no document has two tokens, so there is nothing to predict.", where=stream.corpus,
                            remedy="Give more text.")
        row = best_fit(pieces.lengths, length)
        order = np.lexsort((pieces.starts, row))
        self._starts, self._lengths = pieces.starts[order], pieces.lengths[order]
        self._first = np.searchsorted(row[order], np.arange(row.max() + 2))
        self.windows = len(self._first) - 1
        self.documents, self.cut_documents = pieces.documents, pieces.cut

    @property
    def steps_per_epoch(self) -> float:
        return self.windows / self.rows

    @property
    def tokens_per_batch(self) -> float:
        return int(self._lengths.sum()) / self.steps_per_epoch

    def describe(self) -> str:
        """The result of packing in one line."""
        share = 1 - self.tokens_per_batch / (self.rows * self.length)
        return (f"{self.documents:,} documents packed into {self.windows:,} windows of {self.length:,} tokens; "
                f"{self.cut_documents:,} longer than a window cut; padding {share:.2%}")

    def _batch(self, step: int, share: slice) -> Batch:
        return self.filled(*self.placed(step * self.rows + np.arange(self.rows, dtype=np.int64)[share]))

    @property
    def rows_per_epoch(self) -> int:
        """See `weft.data.batches.NumberedRows`."""
        return self.windows

    @property
    def tokens_per_row(self) -> float:
        """See `weft.data.batches.NumberedRows`."""
        return int(self._lengths.sum()) / self.windows

    def placed(self, samples: Int64[np.ndarray, " n"]) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """The numbers of the packed rows that are the rows ``samples`` of all epochs, and their epochs."""
        epoch, place = np.divmod(samples, self.windows)
        order = epoch if self.reshuffle else np.zeros_like(epoch)
        return permute(place, self.windows, seed=self.seed, epoch=order), epoch

    def filled(self, keys: Int64[np.ndarray, " B"], epoch: Int64[np.ndarray, " B"]) -> Batch:
        """The packed rows ``keys``, in their epochs."""
        held = self._first[keys + 1] - self._first[keys]
        piece = np.repeat(self._first[keys], held) + _within(held)
        lengths = self._lengths[piece]
        row = np.repeat(np.repeat(np.arange(len(keys)), held), lengths)
        count = np.bincount(row, minlength=len(keys)).astype(np.int64)
        here, inside = (row, _within(count)), _within(lengths)
        places = np.repeat(self._starts[piece], lengths) + inside

        def laid(values: np.ndarray) -> np.ndarray:
            out = np.zeros((len(keys), self.length), dtype=values.dtype)
            out[here] = values
            return out

        stream = self.stream
        return Batch(
            inputs=laid(stream.tokens[places].astype(np.int64)),
            targets=laid(stream.tokens[places + 1].astype(np.int64)),
            begins=laid(inside == 0),
            scored=laid(stream.scored(places + 1)),
            target_bytes=laid(stream.byte_lengths[places + 1].astype(np.int64)),
            count=None if (count == self.length).all() else count, places=laid(places), epoch=epoch)


def _within(sizes: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " m"]:
    """0, 1, .. size-1 for each of ``sizes``, end to end."""
    places: Int64[np.ndarray, " m"] = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places

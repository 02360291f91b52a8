"""Batches of whole documents, packed into rows."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from weft.core.errors import DataError
from weft.data.batch import Batch
from weft.data.batches import Batches
from weft.data.orders import in_epochs
from weft.data.packing import Long, best_fit, pieces_of
from weft.data.sequences import WIDTHS
from weft.data.stream import TokenStream


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
        reshuffle: every epoch has its own order; False: all have the order of the first.
        long: what becomes of longer documents; those that are cut or left out are counted in ``cut_documents``.
        alone: every piece has a row to itself, and batches are as wide as their longest row, rounded up to quarters of
            the longest of all.

    Raises:
        DataError: ``rows`` or ``length`` is below 1, no document has a token to predict, or every one is left out.
    """

    def __init__(self, stream: TokenStream, *, rows: int, length: int, seed: int = 0, reshuffle: bool = True,
                 long: Long = "split", alone: bool = False) -> None:
        super().__init__(stream, rows=rows, length=length, seed=seed, reshuffle=reshuffle)
        pieces = pieces_of(stream, length, long)
        if not pieces.documents:
            raise DataError("no document has two tokens, so there is nothing to predict.", where=stream.corpus,
                            remedy="Give more text.")
        if not len(pieces.lengths):
            raise DataError(f"nothing is left to train on: {pieces.cut:,} of {pieces.documents:,} documents are longer "
                            f"than {length} tokens.", where=stream.corpus, remedy="Raise training.context.")
        self._alone, self._long, self.unscored_documents = alone, long, pieces.unscored
        row = np.arange(len(pieces.lengths)) if alone else best_fit(pieces.lengths, length)
        order = np.lexsort((pieces.starts, row))
        self._starts, self._lengths = pieces.starts[order], pieces.lengths[order]
        self._first = np.searchsorted(row[order], np.arange(row.max() + 2))
        self.windows = len(self._first) - 1
        self.documents, self.cut_documents = pieces.documents, pieces.cut

    @property
    def tokens_per_batch(self) -> float:
        return int(self._lengths.sum()) / self.steps_per_epoch

    @property
    def notice(self) -> str:
        """The result of packing in one line."""
        share = 1 - self.tokens_per_batch / (self.rows * self.length)
        longer = {"split": "cut", "cut": "cut at their ends", "drop": "left out"}[self._long]
        packed = "documents, each in a row of its own" if self._alone else (
            f"documents packed into {self.windows:,} windows of {self.length:,} tokens")
        silent = f"; {self.unscored_documents:,} without a scored token left out" if self.unscored_documents else ""
        return (f"{self.documents:,} {packed}; {self.cut_documents:,} longer than a window {longer}{silent}"
                + ("" if self._alone else f"; padding {share:.2%}"))

    def in_order(self, place: int) -> Batch:
        """Batch ``place`` of an evaluation, in which each row comes once, in order; the last one may have fewer."""
        chosen = np.arange(place * self.rows, min((place + 1) * self.rows, self.windows))
        return self.of(chosen, self.length, np.zeros_like(chosen))

    def _batch(self, step: int, share: slice) -> Batch:
        chosen, epoch = self._planned(step)
        return self.of(chosen[share], self._width(chosen), epoch[share])

    def _width(self, chosen: Int64[np.ndarray, " B"]) -> int:
        """Inputs of the rows of a batch, padding included."""
        if not self._alone:
            return self.length
        quarters = -(-WIDTHS * int(self._lengths[chosen].max()) // int(self._lengths.max()))
        return -(-int(self._lengths.max()) * quarters // WIDTHS)

    @property
    def tokens_per_row(self) -> float:
        return int(self._lengths.sum()) / self.windows

    def placed(self, samples: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "columns n"]:
        """The numbers of the packed rows, and their epochs."""
        chosen, _, epoch = in_epochs(samples, self.windows, seed=self.seed, reshuffle=self.reshuffle)
        return np.stack([chosen, epoch])

    def filled(self, rows: Int64[np.ndarray, "columns B"]) -> Batch:
        """The packed rows at full width, in their epochs."""
        chosen, epoch = rows
        return self.of(chosen, self.length, epoch)

    def of(self, chosen: Int64[np.ndarray, " B"], width: int | None = None,
           epoch: Int64[np.ndarray, " B"] | None = None) -> Batch:
        """The rows with the numbers ``chosen``, from 0, in the order of their first documents where each has one alone.

        Args:
            chosen: numbers below ``windows``.
            width: inputs of a row, padding included; None: as many as a batch of these rows has.
            epoch: of each row.
        """
        held = self._first[chosen + 1] - self._first[chosen]
        piece = np.repeat(self._first[chosen], held) + _within(held)
        return filled(self.stream, held, self._starts[piece], self._lengths[piece],
                      self._width(chosen) if width is None else width, epoch)


def filled(stream: TokenStream, held: Int64[np.ndarray, " B"], starts: Int64[np.ndarray, " P"],
           lengths: Int64[np.ndarray, " P"], width: int, epoch: Int64[np.ndarray, " B"] | None = None) -> Batch:
    """Rows of pieces of a stream, each piece a document in its row.

    Args:
        stream: the tokens.
        held: pieces of each row.
        starts: position in the stream of each piece's first input, those of one row together.
        lengths: inputs of each piece.
        width: inputs of a row, padding included.
        epoch: of each row.
    """
    row = np.repeat(np.repeat(np.arange(len(held)), held), lengths)
    count = np.bincount(row, minlength=len(held)).astype(np.int64)
    here, inside = (row, _within(count)), _within(lengths)
    places = np.repeat(starts, lengths) + inside

    def laid(values: np.ndarray) -> np.ndarray:
        out = np.zeros((len(held), width), dtype=values.dtype)
        out[here] = values
        return out

    return Batch(
        inputs=laid(stream.tokens[places].astype(np.int64)),
        targets=laid(stream.tokens[places + 1].astype(np.int64)),
        begins=laid(inside == 0),
        scored=laid(stream.scored(places + 1)),
        target_bytes=laid(stream.byte_lengths[places + 1].astype(np.int64)),
        count=None if (count == width).all() else count, places=laid(places), epoch=epoch,
        target_lost=None if stream.lost is None else laid(stream.lost[places + 1]))


def _within(sizes: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " m"]:
    """0, 1, .. size-1 for each of ``sizes``, end to end."""
    places: Int64[np.ndarray, " m"] = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places

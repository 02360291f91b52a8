"""Rows of ids of different lengths, concatenated in one array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, Integer

from weft.core.errors import TokenizerError
from weft.data.spooled import Spool
from weft.tokenizers import Encoded, Tokenizer

TEXTS_AT_ONCE, CHARACTERS_AT_ONCE = 1 << 12, 1 << 20
WIDTHS = 4
"""Number of widths of batches: multiples of a quarter of the longest row. More widths would pad less, but each needs a
compilation."""


@dataclass(frozen=True, eq=False)
class Padded:
    """Rows padded to one width.

    Attributes:
        ids: zero beyond each row's count.
        count: ids of each row.
    """

    ids: Int64[np.ndarray, "B T"]
    count: Int64[np.ndarray, " B"]


class Sequences:
    """Rows of ids of different lengths.

    Args:
        ids: of all rows, concatenated.
        lengths: of the rows.
    """

    def __init__(self, ids: Integer[np.ndarray, " N"], lengths: Integer[np.ndarray, " n"]) -> None:
        self.ids, self.lengths = ids, lengths.astype(np.int64)
        self._starts = np.cumsum(self.lengths) - self.lengths
        self.longest = int(self.lengths.max(initial=0))

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(self, rows: Int64[np.ndarray, " B"], width: int) -> Padded:
        """The rows ``rows``, padded to ``width``, which is at least the length of the longest."""
        count = self.lengths[rows]
        places = np.arange(width)
        inside = places < count[:, None]
        found = np.zeros((len(rows), width), dtype=np.int64)
        found[inside] = self.ids[(self._starts[rows][:, None] + places)[inside]]
        return Padded(found, count)


class SequenceWriter:
    """Collects rows into `Sequences`, in memory or on disk (see `Spool`).

    Args:
        where: the data's name, for messages.
        largest: the largest number that a row may hold.
    """

    def __init__(self, where: str, largest: int) -> None:
        self._spool, self._dtype = Spool(where), np.dtype(np.min_scalar_type(largest))
        self._lengths: list[np.ndarray] = []
        self._waiting: list[int] = []

    def add(self, row: Integer[np.ndarray, " n"]) -> None:
        """Append a row."""
        self._spool.add(row.astype(self._dtype).tobytes())
        self._waiting.append(len(row))
        if len(self._waiting) == TEXTS_AT_ONCE:
            self._pack()

    def done(self) -> Sequences:
        """All rows; nothing may be added afterwards."""
        self._pack()
        ids = np.frombuffer(self._spool.view(), dtype=self._dtype)
        return Sequences(ids, np.concatenate([np.array([], dtype=np.int64), *self._lengths]))

    def _pack(self) -> None:
        self._lengths.append(np.array(self._waiting, dtype=np.int64))
        self._waiting = []


def encoded_texts(texts: Iterable[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[Encoded]:
    """The tokens of many texts, given as pairs of name and text, in order. Raises `TokenizerError`: the tokenizer
    cannot express a text; ``where`` is its name."""
    batch: list[tuple[str, str]] = []
    characters = 0
    for named in texts:
        batch.append(named)
        characters += len(named[1])
        if len(batch) == TEXTS_AT_ONCE or characters >= CHARACTERS_AT_ONCE:
            yield from _measured(batch, tokenizer)
            batch, characters = [], 0
    yield from _measured(batch, tokenizer)


def widths(*columns: tuple[Sequences, Int64[np.ndarray, " B"]]) -> tuple[int, ...]:
    """The width to which the rows of each column are padded: the same number of quarters of each column's longest row,
    as many as any column needs, so that there are at most `WIDTHS` combinations."""
    longest = [max(1, sequences.longest) for sequences, _ in columns]
    needed = max(-(-WIDTHS * int(sequences.lengths[rows].max(initial=1)) // most)
                 for (sequences, rows), most in zip(columns, longest, strict=True))
    return tuple(-(-most * max(1, needed) // WIDTHS) for most in longest)


def _measured(batch: list[tuple[str, str]], tokenizer: Tokenizer) -> Iterator[Encoded]:
    try:
        yield from tokenizer.measure_many([text for _, text in batch])
    except TokenizerError:
        for name, text in batch:
            try:
                tokenizer.measure(text)
            except TokenizerError as error:
                raise TokenizerError(error.what, where=name, remedy=error.remedy) from None
        raise

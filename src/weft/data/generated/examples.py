"""Examples that are rows with answers; generated rows are made when they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import final

import numpy as np
from jaxtyping import Int64

from weft.data.duplicates import Repeated
from weft.data.generated.generator import AnsweredRows, Generator
from weft.data.sequences import WIDTHS


class RowExamples(ABC):
    """AnsweredRows with answers, by index.

    Attributes:
        name: for messages.
        size: number of rows.
        longest: tokens of a row at most.
        mean_length: expected tokens of a row.
        varies: whether rows differ in length.
    """

    name: str
    size: int
    longest: int
    mean_length: float
    varies: bool = False

    @property
    def repeated(self) -> Repeated | None:
        """See `weft.tasks.base.Examples`; not counted."""
        return None

    def __len__(self) -> int:
        """Tokens, expected ones where rows differ in length."""
        return round(self.size * self.mean_length)

    @abstractmethod
    def rows(self, index: Int64[np.ndarray, " B"]) -> AnsweredRows:
        """The rows with these indices, each below ``size``."""


@final
class GeneratedRows(RowExamples):
    """AnsweredRows of a generator.

    Args:
        generator: the rule.
        seed: of the run's data.
        part: ``train``, ``validation`` or ``test``.
        size: number of rows.
    """

    def __init__(self, generator: Generator, *, seed: int, part: str, size: int) -> None:
        self.generator, self.size = generator, size
        self._seed = generator.seed_of(seed, part)
        self.name = f"{generator.describe()} (seed {seed}, {part})"
        self.longest, self.mean_length, self.varies = generator.longest, generator.mean_length, generator.varies

    def rows(self, index: Int64[np.ndarray, " B"]) -> AnsweredRows:
        return self.generator.rows(self._seed, index)


def share_of_rows(rows: AnsweredRows, share: slice, longest: int) -> AnsweredRows:
    """A share of rows of different lengths, padded to a multiple of a quarter of ``longest`` that holds all of them, so
    that there are at most `WIDTHS` widths."""
    assert rows.count is not None, "rows of different lengths have counts"
    width = -(-longest * max(1, -(-WIDTHS * int(rows.count.max()) // longest)) // WIDTHS)
    ids = np.zeros((len(rows.ids), width), dtype=np.int64)
    kept = min(width, rows.ids.shape[1])
    ids[:, :kept] = rows.ids[:, :kept]
    return replace(rows, ids=ids[share], count=rows.count[share], places=rows.places[share],
                   answers=rows.answers[share])

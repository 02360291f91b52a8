"""Examples that are rows with answers, and batches of them; generated rows are made when they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Int64

from weft.data.duplicates import Repeated
from weft.data.generated.generator import Generator, Rows
from weft.data.sequences import WIDTHS, RowOrder, share_of


class RowExamples(ABC):
    """Rows with answers, by index.

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
    def rows(self, index: Int64[np.ndarray, " B"]) -> Rows:
        """The rows with these indices, each below ``size``."""


@final
class GeneratedRows(RowExamples):
    """Rows of a generator.

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

    def rows(self, index: Int64[np.ndarray, " B"]) -> Rows:
        return self.generator.rows(self._seed, index)


@final
@dataclass(frozen=True, eq=False)
class RowBatch:
    """Rows of a step.

    Attributes:
        rows: what is read and predicted.
    """

    rows: Rows


@final
class RowBatches:
    """Batches of rows in shuffled order, each a pure function of seed and step.

    Args:
        examples: to draw from.
        rows: of a batch.
        seed: of the order.
        reshuffle: see `RowOrder`.
    """

    def __init__(self, examples: RowExamples, *, rows: int, seed: int, reshuffle: bool) -> None:
        self.examples = examples
        self.order = RowOrder(examples.size, rows=rows, seed=seed, reshuffle=reshuffle, where=examples.name)

    @property
    def rows(self) -> int:
        """Rows of a batch."""
        return self.order.rows

    @property
    def steps_per_epoch(self) -> float:
        """Batches of one pass over the rows."""
        return self.order.size / self.rows

    @property
    def tokens_per_batch(self) -> float:
        """Expected tokens of a batch without padding."""
        return self.rows * self.examples.mean_length

    def batch(self, step: int, *, rank: int = 0, world: int = 1) -> RowBatch:
        """The batch of that step, or one rank's rows of it; rows of different lengths are padded to a width of the
        whole batch."""
        index, share = self.order.of(step), share_of(self.rows, rank, world)
        if not self.examples.varies:
            return RowBatch(self.examples.rows(index[share]))
        return RowBatch(part_of(self.examples.rows(index), share, self.examples.longest))


def part_of(rows: Rows, share: slice, longest: int) -> Rows:
    """A share of rows of different lengths, padded to a multiple of a quarter of ``longest`` that holds all of them, so
    that there are at most `WIDTHS` widths."""
    assert rows.count is not None, "rows of different lengths have counts"
    width = -(-longest * max(1, -(-WIDTHS * int(rows.count.max()) // longest)) // WIDTHS)
    ids = np.zeros((len(rows.ids), width), dtype=np.int64)
    kept = min(width, rows.ids.shape[1])
    ids[:, :kept] = rows.ids[:, :kept]
    return replace(rows, ids=ids[share], count=rows.count[share], places=rows.places[share],
                   answers=rows.answers[share])

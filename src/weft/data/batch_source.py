"""Batches for training: what all have, and those of examples in an order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int64

from weft.data.orders import ExampleOrder

B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)


class Lengths(NamedTuple):
    """Tokens of a row that a model reads, without padding; means over an epoch where rows differ.

    Attributes:
        tokens: of the text, or of the target.
        source: of the source; None for a task without one.
    """

    tokens: float
    source: float | None = None


class BatchSource(ABC, Generic[B_co]):
    """An endless sequence of batches. Training resumes at any step without replaying earlier ones; random choices for a
    batch (masks) depend on the seed and the step alone.

    Attributes:
        rows: of a batch; the mean over an epoch where batches differ.
    """

    rows: float

    @property
    @abstractmethod
    def tokens_per_batch(self) -> float:
        """Tokens of a batch without padding; the mean over an epoch where batches differ."""

    @abstractmethod
    def batch(self, step: int, *, rank: int = 0, world: int = 1) -> B_co:
        """The batch of that step, from 0, or one rank's rows of it: consecutive rows, equally many for each rank."""

    @property
    def lengths(self) -> Lengths:
        """Tokens of a row that the model reads, by which the operations of a step are counted."""
        return Lengths(self.tokens_per_batch / self.rows)

    @property
    def notice(self) -> str | None:
        """A line about the batches that is shown before the first step; None: there is none."""
        return None


class RowBatches(BatchSource[B]):
    """Batches of examples in an order, each a pure function of seed and step.

    Args:
        order: the examples of each step.
        lay: returns a batch: of the examples of a step with these indices a share, laid out as the whole batch would
            be; it is given the step too.
        tokens: of a batch, see `BatchSource.tokens_per_batch`.
        source_tokens: the same of sources; None where there are none.
        rows_each: rows of a batch for each example.
        notice: see `BatchSource`.
    """

    def __init__(self, order: ExampleOrder, lay: Callable[[Int64[np.ndarray, " B"], slice, int], B], *, tokens: float,
                 source_tokens: float | None = None, rows_each: int = 1, notice: str | None = None) -> None:
        self.order, self.rows = order, order.rows * rows_each
        self._lay, self._tokens, self._source, self._notice = lay, tokens, source_tokens, notice

    @property
    def steps_per_epoch(self) -> float:
        """Batches of one pass over the examples."""
        return self.order.size / self.order.rows

    @property
    def tokens_per_batch(self) -> float:
        return self._tokens

    @property
    def lengths(self) -> Lengths:
        return Lengths(self._tokens / self.rows, None if self._source is None else self._source / self.rows)

    @property
    def notice(self) -> str | None:
        return self._notice

    def batch(self, step: int, *, rank: int = 0, world: int = 1) -> B:
        chosen = self.order.of(step)
        return self._lay(chosen, self.order.share(len(chosen), rank, world), step)

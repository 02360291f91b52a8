"""Windows for evaluation, in which every token that can be predicted is scored exactly once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.core.errors import DataError
from weft.data.batch import Batch, cut
from weft.data.stream import TokenStream


class EvaluationWindows:
    """Windows of ``context`` inputs that advance by ``stride`` targets.

    The first window scores all its targets, and each later one its last ``stride`` targets, which are predicted from at
    least ``context - stride`` + 1 tokens. The last window ends with the stream and is as long as the others, so that it
    scores only the targets that are left. A stream shorter than ``context`` is one shorter window.

    ``stride == context`` is the fastest protocol, and the least favourable to the model; smaller strides cost
    ``context / stride`` times as much. The very first token of a stream is not predicted.

    Args:
        stream: the tokens.
        context: T, inputs per window.
        stride: targets by which windows advance, from 1 to ``context``; by default ``context``.

    Raises:
        DataError: context, stride or rows is out of range, or the stream has no token to predict.
    """

    def __init__(self, stream: TokenStream, *, context: int, stride: int | None = None, rows: int = 8) -> None:
        stride = context if stride is None else stride
        _require_range("context", context, None)
        _require_range("stride", stride, context)
        _require_range("rows", rows, None)
        stream.require(2, "predicting one token from another", "Give more text.")
        self.stream, self.stride, self.rows = stream, stride, rows
        self.context = context
        self._length = min(context, len(stream) - 1)
        last = len(stream) - 1
        self._ends = np.append(np.arange(self._length, last, stride, dtype=np.int64), last)
        self._count_from = np.concatenate([[1], self._ends[:-1] + 1])

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self._ends) // self.rows)

    def __iter__(self) -> Iterator[Batch]:
        return map(self.batch, range(len(self)))

    def batch(self, index: int) -> Batch:
        """The batch of that number, from 0."""
        rows = slice(index * self.rows, (index + 1) * self.rows)
        return cut(self.stream, self._ends[rows] - self._length, self._length, score_from=self._count_from[rows])

    @property
    def windows(self) -> int:
        """Number of windows."""
        return len(self._ends)

    @property
    def protocol(self) -> str:
        """How tokens are scored, in one line that is reported with every result."""
        ends = (
            "the end of a document counts as a token of 0 bytes"
            if self.stream.begins_scored
            else ("a document's first token does not count")
        )
        return f"context {self.context}, stride {self.stride}, every other token counted once; {ends}"


def _require_range(name: str, value: int, largest: int | None) -> None:
    if value < 1 or (largest is not None and value > largest):
        span = "at least 1" if largest is None else f"from 1 to the context, {largest}"
        raise DataError(f"must be {span}, received {value}.", where=name, remedy="Choose one in range.")

"""The choice of spans that are hidden from a model that is to write them, and the rows that follow from it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64

from weft.data.orders import hashed

NOISE, REST = range(2)
"""Random draws that are made for every row: the borders of the hidden spans, and those of the spans between them."""


class CorruptedRows(NamedTuple):
    """Rows with hidden spans. All rows have the same lengths.

    Attributes:
        source: the tokens that are not hidden, with a sentinel in place of each hidden span, and the closing token.
        target: the opening token; then each hidden span behind its sentinel; then the final sentinel, if there is one,
            and the closing token.
        hidden: which tokens of the text are hidden.
    """

    source: Int64[np.ndarray, "B S"]
    target: Int64[np.ndarray, "B U"]
    hidden: Bool[np.ndarray, "B L"]


@dataclass(frozen=True)
class SpanCounts:
    """How many tokens and spans are hidden of rows of a given length: the same in every row (Raffel et al. 2020,
    appendix, and the released ``random_spans_helper``).

    Attributes:
        tokens: L, of the text.
        noise: hidden tokens: L times the rate, rounded, at least 1 and at most L - 1.
        spans: hidden spans: their tokens divided by the mean length, rounded; at least 1, and at most the tokens of
            either kind, since spans of both kinds alternate and none is empty.
    """

    tokens: int
    noise: int
    spans: int

    @classmethod
    def of(cls, tokens: int, rate: float, mean_span: float) -> SpanCounts:
        """The numbers for rows of ``tokens`` tokens, at least 2."""
        noise = min(max(round(tokens * rate), 1), tokens - 1)
        return cls(tokens, noise, min(max(round(noise / mean_span), 1), noise, tokens - noise))

    @property
    def rest(self) -> int:
        """Tokens that are not hidden."""
        return self.tokens - self.noise


@dataclass(frozen=True, eq=False)
class SpanCorruption:
    """Hidden spans of rows of running text. Spans that are not hidden and hidden ones alternate, in this order, so that
    a row begins with one and ends with the other; subject to that and to `SpanCounts`, all choices are equally likely.

    The draws of a row depend on the seed, its place in the text and the epoch alone, and neither on the batch nor on
    the process.

    Attributes:
        counts: of each row.
        sentinels: their ids, in the order in which they are used; one for each span, and one more with ``final``.
        opening: ids before each target, one or none.
        closing: ids after each source and target, one or none.
        final: whether a further sentinel follows the last hidden span.
    """

    counts: SpanCounts
    sentinels: Int64[np.ndarray, " s"]
    opening: Int64[np.ndarray, " o"]
    closing: Int64[np.ndarray, " c"]
    final: bool
    seed: int

    @cached_property
    def source_length(self) -> int:
        """S."""
        return self.counts.rest + self.counts.spans + len(self.closing)

    @cached_property
    def target_length(self) -> int:
        """U, the opening token included."""
        return len(self.opening) + self.counts.noise + self.counts.spans + self.final + len(self.closing)

    def corrupt(self, ids: Int64[np.ndarray, "B L"], starts: Int64[np.ndarray, " B"],
                epoch: Int64[np.ndarray, " B"]) -> CorruptedRows:
        """The rows with spans hidden.

        Args:
            ids: the tokens.
            starts: position of each row's first token in the text.
            epoch: of each row.
        """
        hidden = self.hidden(starts, epoch)
        before = np.pad(hidden, ((0, 0), (1, 0)))[:, :-1]
        source = self._marked(ids, ~hidden, hidden & ~before)
        first = ~hidden & before
        first[:, 0] = True  # a row begins with what is not hidden
        target = self._marked(ids, hidden, first)
        last = self.sentinels[self.counts.spans:self.counts.spans + self.final]
        return CorruptedRows(_enclosed(self.opening[:0], source, self.closing),
                             _enclosed(self.opening, target, np.concatenate([last, self.closing])), hidden)

    def hidden(self, starts: Int64[np.ndarray, " B"], epoch: Int64[np.ndarray, " B"]) -> Bool[np.ndarray, "B L"]:
        """Which tokens of the rows are hidden."""
        counts = self.counts
        lengths = np.stack([self._lengths(REST, counts.rest, starts, epoch),
                            self._lengths(NOISE, counts.noise, starts, epoch)], axis=2)
        kinds = np.broadcast_to(np.array([False, True]), lengths.shape)
        return np.repeat(kinds.reshape(-1), lengths.reshape(-1)).reshape(len(starts), counts.tokens)

    def _lengths(self, which: int, items: int, starts: Int64[np.ndarray, " B"],
                 epoch: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, "B k"]:
        """Lengths of k spans that divide ``items`` tokens: every division into spans that are not empty is equally
        likely, since the k - 1 borders are any of the items - 1 places."""
        borders = self.counts.spans - 1
        row = hashed(self.seed, 2 * epoch + which).astype(np.int64)[:, None]
        draws = hashed(self.seed, (starts[:, None] + np.arange(items - 1)) ^ row)
        chosen = np.sort(np.argsort(draws, axis=1)[:, :borders], axis=1) + 1
        return np.diff(chosen, axis=1, prepend=0, append=items)

    def _marked(self, ids: Int64[np.ndarray, "B L"], kept: Bool[np.ndarray, "B L"],
                first: Bool[np.ndarray, "B L"]) -> Int64[np.ndarray, "B n"]:
        """The tokens that are ``kept``, and in place of each ``first`` token of other spans the next sentinel."""
        marked = np.where(first, self.sentinels[first.cumsum(1) - 1], ids)
        found: Int64[np.ndarray, "B n"] = marked[kept | first].reshape(len(ids), -1)
        return found


def longest_rows(fits: Callable[[SpanCounts], bool], most: int, rate: float, mean_span: float) -> SpanCounts | None:
    """The counts of the longest rows that fit, of 2 to ``most`` tokens; None: there are none.

    Args:
        fits: whether rows fit; where they do, all shorter ones do. Source and target both grow with the tokens.
        most: tokens of a row at most.
        rate: share of the tokens that is hidden.
        mean_span: mean length of a hidden span.
    """
    def longer(tokens: int) -> bool:
        return not fits(SpanCounts.of(tokens, rate, mean_span))

    found = bisect_left(range(2, max(2, most + 1)), True, key=longer)
    return SpanCounts.of(found + 1, rate, mean_span) if found else None


def _enclosed(before: Int64[np.ndarray, " o"], rows: Int64[np.ndarray, "B n"],
              after: Int64[np.ndarray, " c"]) -> Int64[np.ndarray, "B m"]:
    ends = [np.broadcast_to(each, (len(rows), len(each))) for each in (before, after)]
    return np.ascontiguousarray(np.concatenate([ends[0], rows, ends[1]], axis=1), dtype=np.int64)

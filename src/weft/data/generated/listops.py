"""ListOps: nested operations on digits, written out; what is the result?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from weft.core.errors import DataError
from weft.data.generated.generator import AnsweredRows, Draws, Generator

DIGITS = 10
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
"""Smallest, largest, median (of an even number the mean of the middle two, rounded down), and sum modulo 10."""
CLOSE = DIGITS + len(OPERATORS)
NESTED = 0.25
"""Probability that an argument is an operation and not a digit."""
ATTEMPTS = 10_000
LEAST = 1e-3
"""Share of the expressions of the rule that must have a wanted length, so that one is found in `ATTEMPTS`."""


class _Level(NamedTuple):
    """The nodes of one depth in order: whether each is an operation, its digit or operator, and its arguments."""

    nested: np.ndarray
    symbols: np.ndarray
    arguments: np.ndarray


@dataclass(frozen=True)
class ListOps(Generator):
    """An expression such as ``[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]``, whose value (here 5) is to be predicted
    behind its last bracket (Nangia and Bowman 2018; with the lengths, arguments and depth of the Long Range Arena, Tay
    et al. 2021, section 2.2.1, whose code leaves out FIRST and LAST).

    An argument is an operation with probability 1/4 unless it stands at the greatest depth, and otherwise a digit from
    0 to 9; an operation is one of four, with a number of arguments drawn uniformly from 2 to ``max_args``. Expressions
    whose number of tokens is not between the bounds are drawn again. The outermost node is an operation, of depth 1.

    Ids: 0 .. 9 are digits, 10 .. 13 the operators ``[MIN [MAX [MED [SM``, 14 is ``]``. The answer is a digit's id.

    Attributes:
        min_length: rows are longer than this.
        max_length: rows are shorter than this.
        max_depth: levels of nodes at most.
        max_args: arguments of an operation at most.
    """

    min_length: int
    max_length: int
    max_depth: int
    max_args: int

    @property
    def vocab_size(self) -> int:
        return CLOSE + 1

    @property
    def longest(self) -> int:
        return self.max_length - 1

    @property
    def answers(self) -> int:
        return 1

    @property
    def chance(self) -> None:
        return None

    @property
    def varies(self) -> bool:
        return True

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(map(str, range(DIGITS)))

    @cached_property
    def lengths(self) -> Float64[np.ndarray, " longest"]:
        """The probability of each length below ``max_length`` of an expression of the rule, before any is refused."""
        leaf = np.zeros(self.max_length)
        leaf[1:2] = 1.0
        argument = leaf
        for depth in range(self.max_depth - 1, 0, -1):
            nested, several = np.zeros(self.max_length), argument
            for _ in range(self.max_args - 1):
                several = _convolved(several, argument)
                nested[2:] += several[:-2] / (self.max_args - 1)
            argument = nested if depth == 1 else NESTED * nested + (1 - NESTED) * leaf
        return argument

    @property
    def likelihood(self) -> float:
        """The probability that an expression of the rule has a wanted length."""
        return float(self.lengths[self.min_length + 1:].sum())

    @property
    def mean_length(self) -> float:
        wanted = self.lengths[self.min_length + 1:]
        return float((wanted * np.arange(self.min_length + 1, self.max_length)).sum() / max(wanted.sum(), 1e-300))

    def describe(self) -> str:
        return (f"ListOps of {self.min_length + 1:,} to {self.longest:,} tokens, depth {self.max_depth}, "
                f"{self.max_args} arguments")

    def rows(self, seed: int, index: Int64[np.ndarray, " B"]) -> AnsweredRows:
        found = [self._row(seed, each) for each in index]
        count = np.array([len(tokens) for tokens, _ in found], dtype=np.int64)
        ids = np.zeros((len(found), self.longest), dtype=np.int64)
        for row, (tokens, _) in zip(ids, found, strict=True):
            row[:len(tokens)] = tokens
        return AnsweredRows(ids, count, count[:, None] - 1, np.array([[value] for _, value in found], dtype=np.int64))

    def _row(self, seed: int, index: np.int64) -> tuple[np.ndarray, int]:
        draws = Draws(seed, np.array([index]))
        for _ in range(ATTEMPTS):
            levels = self._levels(draws)
            if levels is not None:
                return _written(levels), _value(levels)
        raise DataError(f"no expression of a wanted length among {ATTEMPTS:,}.", where=self.describe(),
                        remedy="Lower task.min_length, or raise task.max_length, max_depth or max_args.")

    def _levels(self, draws: Draws) -> list[_Level] | None:
        """An expression, level by level; None if its length is not wanted."""
        nodes, length, levels = 1, 0, list[_Level]()
        while nodes:
            depth = len(levels) + 1
            nested = draws.uniform(nodes)[0] < (1.0 if depth == 1 else NESTED if depth < self.max_depth else 0.0)
            kinds, digits = draws.below(len(OPERATORS), nodes)[0], draws.below(DIGITS, nodes)[0]
            arguments = np.where(nested, 2 + draws.below(self.max_args - 1, nodes)[0], 0)
            levels.append(_Level(nested, np.where(nested, DIGITS + kinds, digits), arguments))
            length += nodes + int(nested.sum())
            nodes = int(arguments.sum())
            if length + nodes >= self.max_length:
                return None
        return levels if length > self.min_length else None


def _convolved(a: np.ndarray, b: np.ndarray) -> Float64[np.ndarray, " n"]:
    """The beginning of a convolution, as long as both, by transforms of twice the length."""
    found: np.ndarray = np.fft.irfft(np.fft.rfft(a, 2 * len(a)) * np.fft.rfft(b, 2 * len(b)), 2 * len(a))[:len(a)]
    return found


def _written(levels: list[_Level]) -> Int64[np.ndarray, " T"]:
    """The tokens of an expression: sizes of subtrees from the leaves up, then places from the root down."""
    sizes, below = list[np.ndarray](), np.zeros(0, dtype=np.int64)
    for level in reversed(levels):
        below_each = _sums(below, level.arguments[level.nested])
        below = np.ones(len(level.nested), dtype=np.int64)
        below[level.nested] += 1 + below_each
        sizes.insert(0, below)
    ids, starts = np.full(int(below[0]), CLOSE, dtype=np.int64), np.zeros(1, dtype=np.int64)
    for level, deeper in zip(levels, [*sizes[1:], sizes[0][:0]], strict=True):
        ids[starts] = level.symbols
        counts = level.arguments[level.nested]
        starts = np.repeat(starts[level.nested] + 1, counts) + _before(deeper, counts)
    return ids


def _sums(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sums of consecutive groups of these sizes, each at least 1."""
    found: np.ndarray = np.add.reduceat(values, np.cumsum(counts) - counts) if len(counts) else values[:0]
    return found


def _before(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """For each value, the sum of those before it in its group."""
    sums = np.cumsum(values) - values
    found: np.ndarray = sums - np.repeat(sums[np.cumsum(counts) - counts], counts) if len(counts) else values[:0]
    return found


def _value(levels: list[_Level]) -> int:
    """The value of an expression, from the leaves up."""
    below: list[int] = []
    for level in reversed(levels):
        values, first = list[int](), 0
        for nested, symbol, count in zip(*(each.tolist() for each in level), strict=True):
            values.append(_applied(symbol - DIGITS, below[first:first + count]) if nested else symbol)
            first += count
        below = values
    return below[0]


def _applied(operator: int, values: list[int]) -> int:
    if operator == 0:
        return min(values)
    if operator == 1:
        return max(values)
    if operator == 2:
        ordered, middle = sorted(values), len(values) // 2
        return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2
    return sum(values) % DIGITS

"""`Generator`: a rule by which rows and their answers are made, and `AnsweredRows`, what it makes.

Random numbers of generated examples, each a pure function of seed, example and place.

Examples that are rows with answers; generated rows are made when they are read.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from weft.data.duplicates import Repeated
from weft.data.orders import hashed
from weft.data.sequences import WIDTHS


@dataclass(frozen=True, eq=False)
class AnsweredRows:
    """AnsweredRows of ids with the places at which something is to be predicted.

    Attributes:
        ids: tokens; zero beyond each row's count.
        count: tokens of each row; None: all T.
        places: at which an answer is predicted from the tokens up to and including that place; K for every row.
        answers: the id to be predicted at each place. It need not be the token that follows in the row.
    """

    ids: Int64[np.ndarray, "B T"]
    count: Int64[np.ndarray, " B"] | None
    places: Int64[np.ndarray, "B K"]
    answers: Int64[np.ndarray, "B K"]


class Generator(ABC):
    """A rule that makes rows: each row is a pure function of the rule's settings, the seed and the row's index.

    Class attributes:
        version: raised with every change after which the same settings, seed and index give another row.
    """

    version: ClassVar[int] = 1

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, answers included."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """Tokens of a row at most."""

    @property
    @abstractmethod
    def answers(self) -> int:
        """K, answers of a row."""

    @property
    @abstractmethod
    def chance(self) -> float | None:
        """The expected share of right answers of the best guess that does not look at the row; None where it has to be
        counted (the share of the most frequent answer)."""

    @property
    def mean_length(self) -> float:
        """Expected tokens of a row."""
        return float(self.longest)

    @property
    def varies(self) -> bool:
        """Whether rows differ in length."""
        return False

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, if the one answer of a row is its class; empty otherwise."""
        return ()

    @property
    def first_class(self) -> int:
        """The id that stands for the first class; those of the others follow."""
        return 0

    @abstractmethod
    def rows(self, seed: int, index: Int64[np.ndarray, " B"]) -> AnsweredRows:
        """The rows with these indices. Raises `DataError`: the rule's settings leave no row that can be found."""

    @abstractmethod
    def describe(self) -> str:
        """The rule and its settings in a few words."""

    def seed_of(self, seed: int, part: str) -> int:
        """The seed of a part of a run's data (``train``, ``validation``, ``test``), so that parts share no examples
        but by chance."""
        named = f"{type(self).__name__}\0{self.version}\0{part}\0{seed}"
        return int.from_bytes(hashlib.sha256(named.encode()).digest()[:8], "little")


@dataclass(frozen=True)
class SymbolGenerator(Generator):
    """A rule whose rows are all of one length and made of numbered symbols.

    Attributes:
        length: tokens of a row.
        symbols: V, ids of the vocabulary.
    """

    length: int
    symbols: int

    @property
    def vocab_size(self) -> int:
        return self.symbols

    @property
    def longest(self) -> int:
        return self.length


PLACES = 24
"""Bits of a counter that number the draws of one example; those above number the examples."""
MOST_EXAMPLES = 1 << 39
"""Examples that a seed has: their numbers and `PLACES` fit into 63 bits."""


class Draws:
    """Random numbers for several examples at once; a row's numbers do not depend on the rows beside it.

    Draw n of an example is SplitMix64 at a counter that numbers examples and draws (`weft.data.orders.hashed`),
    so that it depends on no earlier example and on no version of a library.

    Args:
        index: of the examples, each from 0 and below `MOST_EXAMPLES`.
    """

    def __init__(self, seed: int, index: Int64[np.ndarray, " B"]) -> None:
        self._seed, self._first = seed, index.astype(np.int64) << PLACES
        self._used = 0

    def bits(self, count: int) -> UInt64[np.ndarray, "B {count}"]:
        """The next ``count`` draws of each example, 64 bits each."""
        assert self._used + count <= 1 << PLACES, "an example has 2^24 draws"
        counter = self._first[:, None] + np.arange(self._used, self._used + count)
        self._used += count
        return hashed(self._seed, counter.reshape(-1)).reshape(counter.shape)

    def uniform(self, count: int) -> Float64[np.ndarray, "B {count}"]:
        """Numbers in [0,1), multiples of 2^-53."""
        return (self.bits(count) >> np.uint64(11)) * 2.0**-53

    def below(self, limit: int, count: int) -> Int64[np.ndarray, "B {count}"]:
        """Whole numbers from 0 to ``limit`` - 1; each is drawn with probability 1 / limit, to within 2^-32."""
        assert 0 < limit <= 1 << 32, "larger limits would need more bits"
        half = np.uint64(32)
        return (((self.bits(count) >> half) * np.uint64(limit)) >> half).astype(np.int64)

    def different(self, size: int, count: int, weights: Float64[np.ndarray, " {size}"] | None = None
                  ) -> Int64[np.ndarray, "B {count}"]:
        """``count`` different numbers below ``size``, drawn one after another without putting back: each draw takes one
        of those left with a probability in proportion to its weight (None: equal ones).

        They are those with the smallest E / weight, E exponentially distributed (Efraimidis and Spirakis 2006).
        """
        assert count <= size, "no more than there are"
        keys = -np.log1p(-self.uniform(size))
        if weights is not None:
            keys = keys / weights
        smallest = np.argpartition(keys, count - 1, axis=-1)[:, :count]
        order = np.argsort(np.take_along_axis(keys, smallest, -1), axis=-1, kind="stable")
        found: np.ndarray = np.take_along_axis(smallest, order, -1).astype(np.int64)
        return found


class RowExamples(ABC):
    """AnsweredRows with answers, by index.

    Attributes:
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


class GeneratedRows(RowExamples):
    """AnsweredRows of a generator.

    Args:
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

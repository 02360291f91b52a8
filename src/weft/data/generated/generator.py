"""`Generator`: a rule by which rows and their answers are made, and `AnsweredRows`, what it makes."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Int64


@final
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
        """The rows with these indices.

        Raises:
            DataError: the rule's settings leave no row that can be found.
        """

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

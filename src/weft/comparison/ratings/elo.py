"""Elo ratings: every game moves the two ratings towards its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float64, Int64

from weft.comparison.ratings.games import Games, require_positive
from weft.comparison.statistics import DRAWN, draws
from weft.core.errors import InputError


@dataclass(frozen=True)
class Elo:
    """Elo ratings (Elo 1978, "The Rating of Chessplayers, Past and Present"), of base 10.

        E = 1 / (1 + 10^((R_b - R_a) / scale)),    R_a <- R_a + k (S - E),    R_b <- R_b - k (S - E)

    S is 1 where a won, 0.5 for a tie and 0 where b won. The ratings depend on the order of the games: late ones count
    more. ``orders`` takes the median over shuffled orders instead of the given one, for data in which the order means
    nothing. The defaults are those of the first ratings of Chatbot Arena (LMSYS 2023).

    Attributes:
        k: the most that a game can move a rating.
        scale: difference of ratings at which one model wins ten times as often as the other.
        start: every model's first rating; a game gives one model what it takes from the other.
        orders: number of shuffled orders; 0: the given order alone.

    Raises:
        InputError: a number is out of range.
    """

    k: float = 4.0
    scale: float = 400.0
    start: float = 1000.0
    orders: int = 0

    name: ClassVar[str] = "elo"

    def __post_init__(self) -> None:
        require_positive("k", self.k)
        require_positive("scale", self.scale)
        if self.orders < 0:
            raise InputError(f"{self.orders} orders.", where="orders", remedy="Give 0 or more.")

    def fit(self, games: Games, seed: int) -> Float64[np.ndarray, " M"]:
        """Ratings of the models. ``seed`` is of the shuffled orders, if there are any."""
        count = len(games.score)
        if not self.orders:
            return np.asarray(self._played(games, np.arange(count)[None])[0])
        source, at_once = np.random.PCG64(seed), max(1, DRAWN // count)
        batches = [min(at_once, self.orders - done) for done in range(0, self.orders, at_once)]
        found = [self._played(games, np.argsort(source.random_raw(rows * count).reshape(rows, count), axis=1,
                                                kind="stable")) for rows in batches]
        return np.asarray(np.median(np.concatenate(found), axis=0))

    def resample(self, games: Games, seed: int, resamples: int) -> Float64[np.ndarray, "R M"]:
        """Ratings of R samples of the games, drawn with replacement, each in the order in which it was drawn, so that
        they vary by the order as by the choice of the games."""
        count = len(games.score)
        return np.concatenate([self._played(games, chosen)
                               for chosen in draws(count, seed, resamples, max(1, DRAWN // count))])

    def _played(self, games: Games, order: Int64[np.ndarray, "R N"]) -> Float64[np.ndarray, "R M"]:
        """Ratings after R sequences of games, which are played side by side."""
        ratings, row = np.full((len(order), len(games.names)), float(self.start)), np.arange(len(order))
        firsts, seconds, scores = (np.ascontiguousarray(each[order].T)
                                   for each in (games.first, games.second, games.score))
        for first, second, score in zip(firsts, seconds, scores, strict=True):
            ahead = ratings[row, first] - ratings[row, second]
            # 1 / (1 + 10^-x) without overflow for models that are far apart.
            expected = 0.5 * (1 + np.tanh(0.5 * np.log(10) / self.scale * ahead))
            moved = self.k * (score - expected)
            ratings[row, first] += moved
            ratings[row, second] -= moved
        return ratings

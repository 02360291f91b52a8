"""Ratings of models with bootstrap intervals, in order."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float64

from weft.comparison.ratings.bradley_terry import BradleyTerry
from weft.comparison.ratings.elo import Elo
from weft.comparison.ratings.games import Games
from weft.comparison.statistics import Interval, bootstrap_test
from weft.core.errors import DataError, InputError
from weft.core.strict_json import Record

Method: TypeAlias = Elo | BradleyTerry

FEWEST = 0.95
"""Share of the resamples that must have ratings: without the others an interval says too little of what is open."""


@dataclass(frozen=True)
class Resampling:
    """How intervals are found: by the bootstrap over games.

    Attributes:
        resamples: samples of the games, drawn with replacement; 0: no intervals.
        seed: of the samples, and of shuffled orders.

    Raises:
        InputError: a number is out of range.
    """

    resamples: int = 1000
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.resamples < 0 or self.resamples == 1:
            raise InputError(f"{self.resamples} samples give no interval.", where="resamples",
                             remedy="Give 2 or more, or 0 for no intervals.")
        if not 0 < self.confidence < 1:
            raise InputError(f"{self.confidence}, which must lie between 0 and 1.", where="confidence",
                             remedy="Give a share, such as 0.95.")
        if self.seed < 0:
            raise InputError(f"{self.seed}, which must not be negative.", where="seed", remedy="Give 0 or more.")


@dataclass(frozen=True)
class Rated(Record):
    """A model's rating.

    Attributes:
        rating: with its interval; the bounds are None without resamples.
        games: that the model played.
        points: games that it won, ties counted as halves.
        rank: one more than the number of models whose intervals lie wholly above this one's.
        overlaps: models whose intervals overlap with this one's, the highest rating first.
    """

    name: str
    rating: Interval
    games: int
    points: float
    rank: int
    overlaps: tuple[str, ...]


@dataclass(frozen=True)
class Ratings(Record):
    """Ratings of all models.

    Attributes:
        method: ``elo`` or ``bradley-terry``.
        settings: its numbers, and those of the resampling.
        ties: how many of them no one won.
        left_out: resamples without ratings, since their likelihood has no maximum.
        models: the highest rating first.
    """

    method: str
    settings: dict[str, Any]
    games: int
    ties: int
    left_out: int
    models: tuple[Rated, ...]


def rated(games: Games, method: Method, resampling: Resampling) -> Ratings:
    """Ratings of the models of some games, with percentile intervals of ratings of resampled games. Raises `DataError`:
    Bradley-Terry's likelihood has no maximum, or has none in more than one resample of twenty."""
    ratings = method.fit(games, resampling.seed)
    intervals, left_out = _intervals(games, method, resampling, ratings)
    order = sorted(range(len(games.names)), key=lambda place: (-ratings[place], games.names[place]))
    played, points = games.played(), games.points()
    models = tuple(Rated(games.names[place], intervals[place], int(played[place]), float(points[place]),
                         1 + sum(_above(other, intervals[place]) for other in intervals),
                         tuple(games.names[other] for other in order
                               if other != place and intervals[other].low is not None
                               and not _above(intervals[other], intervals[place])
                               and not _above(intervals[place], intervals[other])))
                   for place in order)
    settings = {**asdict(method), **asdict(resampling)}
    return Ratings(method.name, settings, len(games.score), games.ties, left_out, models)


def _intervals(games: Games, method: Method, resampling: Resampling,
               ratings: Float64[np.ndarray, " M"]) -> tuple[list[Interval], int]:
    count = len(games.score)
    if not resampling.resamples or count < 2:
        return [Interval(rating, None, None) for rating in ratings.tolist()], 0
    drawn = method.resample(games, resampling.seed, resampling.resamples)
    left_out = resampling.resamples - len(drawn)
    if len(drawn) < FEWEST * resampling.resamples:
        raise DataError(f"{left_out:,} of {resampling.resamples:,} resamples have no finite ratings: too few games "
                        "decide between some models.", where="games", remedy="Regularise with virtual ties "
                        "(virtual_ties=1, --virtual-ties 1), or ask for no intervals (resamples=0, --resamples 0).")
    return [bootstrap_test(rating, drawn[:, place], count, resampling.confidence).interval
            for place, rating in enumerate(ratings.tolist())], left_out


def _above(one: Interval, other: Interval) -> bool:
    """Whether one lies wholly above the other; of ratings alone, the higher one does."""
    low, high = (one.mean if one.low is None else one.low), (other.mean if other.high is None else other.high)
    return low > high

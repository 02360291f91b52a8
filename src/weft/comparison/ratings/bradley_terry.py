"""Bradley-Terry ratings: strengths of maximum likelihood, whatever the order of the games.

Whether ratings of maximum likelihood exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float64

from weft.comparison.ratings.games import Games, require_positive
from weft.comparison.statistics import DRAWN, draws, times_of
from weft.core.errors import DataError, FailedError, InputError

STEPS, CLOSE = 200, 1e-10
"""Most steps of Newton's method, and the largest change of a strength, in nats, at which it has ended."""


@dataclass(frozen=True)
class BradleyTerry:
    """Bradley-Terry ratings (Bradley and Terry 1952, "Rank analysis of incomplete block designs").

        P(a beats b) = 1 / (1 + exp(s_b - s_a)),    rating = start + scale s / ln 10

    The strengths s maximise the likelihood of all games, in which a tie counts as half a win of each. Their mean is
    zero. The likelihood is concave, and has a maximum unless the models fall into two groups of which one has never won
    or tied against the other (Ford 1957); such games are refused, or regularised by virtual ties.

    Attributes:
        scale: difference of ratings at which one model wins ten times as often as the other.
        start: the mean of the ratings; with virtual ties, the rating of the opponent in them.
        virtual_ties: games that are added for each model, tied against an opponent whose strength is fixed at zero. A
            maximum then always exists, and ratings are drawn towards ``start``. Need not be whole.

    Raises:
        InputError: a number is out of range.
    """

    scale: float = 400.0
    start: float = 1000.0
    virtual_ties: float = 0.0

    name: ClassVar[str] = "bradley-terry"

    def __post_init__(self) -> None:
        require_positive("scale", self.scale)
        if not (self.virtual_ties >= 0 and math.isfinite(self.virtual_ties)):
            raise InputError(f"{self.virtual_ties} games.", where="virtual_ties", remedy="Give 0 or more.")

    def fit(self, games: Games, seed: int) -> Float64[np.ndarray, " M"]:
        """Ratings of the models; nothing is drawn, so ``seed`` does not matter. Raises `DataError`: the likelihood has
        no maximum."""
        wins = _wins(games, np.ones((1, len(games.score))))
        if not self.virtual_ties:
            require_maximum(games.names, wins[0])
        return np.asarray(self._scaled(strengths(wins, self.virtual_ties))[0])

    def resample(self, games: Games, seed: int, resamples: int) -> Float64[np.ndarray, "Q M"]:
        """Ratings of samples of the games, drawn with replacement, without those samples whose likelihood has no
        maximum: Q of R."""
        count, found = len(games.score), []
        for chosen in draws(count, seed, resamples, max(1, DRAWN // max(count, 4 * len(games.names) ** 2))):
            wins = _wins(games, times_of(chosen))
            wins = wins if self.virtual_ties else wins[exists(wins)]
            found.append(self._scaled(strengths(wins, self.virtual_ties)))
        return np.concatenate(found)

    def _scaled(self, strength: Float64[np.ndarray, "R M"]) -> Float64[np.ndarray, "R M"]:
        return self.start + self.scale / math.log(10) * strength


def _wins(games: Games, times: Float64[np.ndarray, "R N"]) -> Float64[np.ndarray, "R M M"]:
    """How often each model (rows) won against each other (columns), if every game took place so many times."""
    rows, models = len(times), len(games.names)
    table = np.zeros((rows, models * models))
    for winner, loser, score in ((games.first, games.second, games.score),
                                 (games.second, games.first, 1 - games.score)):
        cells, place = np.unique(winner * models + loser, return_inverse=True)
        weights = times * score
        flat = (place + len(cells) * np.arange(rows)[:, None]).ravel()
        table[:, cells] += np.bincount(flat, weights=weights.ravel(),
                                       minlength=rows * len(cells)).reshape(rows, len(cells))
    return table.reshape(rows, models, models)


def strengths(wins: Float64[np.ndarray, "R M M"], virtual_ties: float = 0.0) -> Float64[np.ndarray, "R M"]:
    """Strengths of maximum likelihood, in nats, by Newton's method with step halving.

    Args:
        wins: how often each model (rows) won against each other (columns), in each of R tables, for which a maximum
            exists.
        virtual_ties: ties of each model with an opponent of strength zero.

    Raises:
        FailedError: the method has not come to its end.
    """
    rows, models = wins.shape[:2]
    found, open_rows = np.zeros((rows, models)), np.arange(rows)
    for _ in range(STEPS):
        if not len(open_rows):
            return found
        step = _newton(found[open_rows], wins[open_rows], virtual_ties)
        found[open_rows] += step
        open_rows = open_rows[np.abs(step).max(1) > CLOSE]
    if not len(open_rows):
        return found
    raise FailedError(f"the likelihood's maximum was not found in {STEPS} steps.", where="games",
                      remedy="Regularise with virtual ties (virtual_ties=1, --virtual-ties 1).")


def _newton(strength: Float64[np.ndarray, "R M"], wins: Float64[np.ndarray, "R M M"],
            virtual_ties: float) -> Float64[np.ndarray, "R M"]:
    """One step, halved until the likelihood does not fall."""
    models = strength.shape[1]
    expected = _logistic(strength[:, :, None] - strength[:, None, :])
    games = wins + wins.swapaxes(1, 2)
    own = _logistic(strength)
    gradient = (wins - games * expected).sum(2) + virtual_ties * (0.5 - own)
    weights = games * expected * (1 - expected)
    curvature = -weights
    diagonal = np.arange(models)
    curvature[:, diagonal, diagonal] += weights.sum(2) + virtual_ties * own * (1 - own)
    if not virtual_ties:
        # Only differences count without them: strengths are kept to a mean of zero.
        curvature += curvature[:, diagonal, diagonal].mean(1)[:, None, None] / models
    step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
    before, share = _log_likelihood(strength, wins, virtual_ties), np.ones((len(strength), 1))
    for _ in range(60):
        # Of two sums that differ by their rounding alone neither is the larger.
        fallen = _log_likelihood(strength + share * step, wins, virtual_ties) < before - 1e-12 * np.abs(before)
        if not fallen.any():
            break
        share[fallen] /= 2
    return share * step


def _log_likelihood(strength: Float64[np.ndarray, "R M"], wins: Float64[np.ndarray, "R M M"],
                    virtual_ties: float) -> Float64[np.ndarray, " R"]:
    ahead = strength[:, :, None] - strength[:, None, :]
    tied = np.logaddexp(0, strength) + np.logaddexp(0, -strength)
    return np.asarray(-(wins * np.logaddexp(0, -ahead)).sum((1, 2)) - virtual_ties / 2 * tied.sum(1))


def _logistic(value: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * value)))


SHOWN = 5
"""How many names a message lists."""

REMEDY = "Leave them out, add games, or regularise with virtual ties (virtual_ties=1, --virtual-ties 1)."


def exists(wins: Float64[np.ndarray, "R M M"]) -> Bool[np.ndarray, " R"]:
    """Whether the likelihood of each table of wins has a maximum: if, however the models are divided into two groups,
    some model of each has won (or tied) against one of the other (Ford 1957, "Solution of a ranking problem from binary
    comparisons").

    Args:
        wins: how often each model (rows) won against each other (columns), a tie as half a win of both.
    """
    return np.asarray(reached(wins > 0).all((1, 2)))


def reached(beaten: Bool[np.ndarray, "R M M"]) -> Bool[np.ndarray, "R M M"]:
    """Which models stand below each in a chain of wins, itself included: paths of twice the length at every step."""
    count = beaten.shape[-1]
    paths = beaten | np.eye(count, dtype=bool)
    for _ in range(max(1, (count - 1).bit_length())):
        paths = (paths.astype(np.float32) @ paths.astype(np.float32)) > 0
    return paths


def require_maximum(names: tuple[str, ...], wins: Float64[np.ndarray, "M M"]) -> None:
    """Refuse games whose likelihood has no maximum. Raises `DataError`: with the models whose ratings would be
    infinite, or the groups that never met."""
    below = reached((wins > 0)[None])[0]
    if below.all():
        return
    met = reached((wins + wins.T > 0)[None])[0]
    if not met.all():
        groups = sorted({tuple(names[place] for place in np.flatnonzero(row)) for row in met})
        raise DataError(f"{len(groups)} groups of models never met: {'; '.join(map(_listed, groups[:SHOWN]))}. Nothing "
                        "says how the ratings of one group lie to those of another.", where="games",
                        remedy="Rate each group alone, add games between them, or regularise with virtual ties "
                               "(virtual_ties=1, --virtual-ties 1).")
    above = below.T
    top, bottom = (min((row for row in table), key=np.count_nonzero) for table in (above, below))
    lost = np.count_nonzero(bottom) < np.count_nonzero(top)
    group = tuple(names[place] for place in np.flatnonzero(bottom if lost else top))
    what = "lost" if lost else "won"
    games = "all of its games" if len(group) == 1 else "every game against the others"
    raise DataError(f"{_listed(group)} {what} {games}, so that no finite rating is {'low' if lost else 'high'} enough.",
                    where="games", remedy=REMEDY)


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more

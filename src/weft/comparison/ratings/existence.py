"""Whether ratings of maximum likelihood exist."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64

from weft.core.errors import DataError

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
    """Refuse games whose likelihood has no maximum.

    Raises:
        DataError: with the models whose ratings would be infinite, or the groups that never met.
    """
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

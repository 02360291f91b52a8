"""Games between models of known strengths, for the tests of ratings."""

from __future__ import annotations

import numpy as np

TRUE = {"ash": 1150.0, "birch": 1070.0, "cedar": 1000.0, "elm": 940.0, "fir": 840.0}
"""Ratings whose mean is 1,000."""


def drawn(count: int, *, seed: int = 0, ties: float = 0.0) -> list[tuple[str, str, str | None]]:
    """Games of random pairs, won with the probability that the ratings say, or tied whatever they say."""
    source, names = np.random.default_rng(seed), list(TRUE)
    found: list[tuple[str, str, str | None]] = []
    for _ in range(count):
        first, second = (names[place] for place in source.choice(len(names), 2, replace=False))
        wins = source.random() < 1 / (1 + 10 ** ((TRUE[second] - TRUE[first]) / 400))
        found.append((first, second, None if source.random() < ties else first if wins else second))
    return found

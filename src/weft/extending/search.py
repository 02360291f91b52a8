"""The search for LongRoPE's factors: an evolutionary search over non-decreasing lists.

Ding et al. 2024, section 3.2 and algorithm 1. The paper also searches for a number of first tokens whose positions are
not scaled. That is omitted here, as in the released models, whose configurations have no such number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

Factors: TypeAlias = tuple[float, ...]
Cost: TypeAlias = Callable[[Factors], float]

MUTATION = 0.3
"""Probability that a mutation replaces a factor by a random one."""
LARGEST = 1.25
"""Random factors are between 1 and this multiple of the scale (table 4)."""
STEP = 0.01
"""Random factors are multiples of this (table 4)."""
PARENTS = 8
"""Number of the best lists so far from which new ones are derived. The paper's search derives 32 lists from 32 parents
in each of 40 rounds; this one derives one at a time, so that few evaluations already use what the others showed."""
TRIES = 100
"""Attempts to derive a list not evaluated before, after which the search ends: with few pairs of features all lists may
have been evaluated."""


def search(seeds: Sequence[Factors], scale: float, cost: Cost, *, evaluations: int, seed: int) -> Factors:
    """Return the list of factors with the least cost.

    Args:
        seeds: lists to begin with, one factor for each pair of features, from the fastest pair to the slowest.
        scale: s, the new length divided by the trained one.
        cost: the function to minimise, such as perplexity at the new length.
        evaluations: number of calls of ``cost``, at least one for each of the seeds.
        seed: seed of the random choices.
    """
    draw, costs = random.Random(seed), {}
    for factors in seeds:
        costs[factors] = cost(factors)
    while len(costs) < evaluations:
        parents = sorted(costs, key=costs.__getitem__)[:PARENTS]
        child = next((new for new in (_child(parents, scale, draw) for _ in range(TRIES)) if new not in costs), None)
        if child is None:
            break
        costs[child] = cost(child)
    return min(costs, key=costs.__getitem__)


def _child(parents: Sequence[Factors], scale: float, draw: random.Random) -> Factors:
    """Derive a list: with equal probability a mutation of one parent or a crossover of two."""
    first, second = draw.choice(parents), draw.choice(parents)
    if first != second and draw.random() < 0.5:
        made = [draw.choice(pair) for pair in zip(first, second, strict=True)]
    else:
        made = [_drawn(scale, draw) if draw.random() < MUTATION else factor for factor in first]
    # The paper rejects lists that decrease anywhere. Sorting the same factors gives a valid list without rejections.
    return tuple(sorted(made))


def _drawn(scale: float, draw: random.Random) -> float:
    steps = round((max(scale * LARGEST, 1.0) - 1) / STEP)
    return round(1 + STEP * draw.randint(0, steps), 2)

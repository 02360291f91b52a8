"""The search for LongRoPE's factors: an evolutionary search over lists that do not decrease.

Ding et al. 2024, section 3.2 and algorithm 1. The paper's additional search over the number of first tokens whose
positions stay unscaled is left out, as in the released models, whose configurations have no such number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

Factors: TypeAlias = tuple[float, ...]
Cost: TypeAlias = Callable[[Factors], float]

MUTATION = 0.3
"""Probability that a mutation draws a factor anew (section 4.1)."""
LARGEST = 1.25
"""Factors are drawn from 1 to this times the scale (table 4)."""
STEP = 0.01
"""And are multiples of this (table 4)."""
PARENTS = 8
"""The best lists so far, from which new ones are made."""
TRIES = 100
"""Attempts at a new list before the search ends early: with few pairs there may be no further ones."""


class Found(NamedTuple):
    """A list of factors, and its cost."""

    factors: Factors
    cost: float


def search(seeds: Sequence[Factors], scale: float, cost: Cost, *, evaluations: int, seed: int) -> Found:
    """The cheapest list that was found.

    Args:
        seeds: lists to begin with, one factor for each pair of features, from the fastest pair to the slowest.
        scale: s, the new length over the trained one.
        cost: what is minimised, such as perplexity at the new length.
        evaluations: calls of ``cost``, at least one for each of the seeds.
        seed: of the random choices.
    """
    draw, found = random.Random(seed), {}
    for factors in seeds:
        found[factors] = cost(factors)
    while len(found) < evaluations:
        parents = sorted(found, key=found.__getitem__)[:PARENTS]
        child = next((made for made in (_child(parents, scale, draw) for _ in range(TRIES)) if made not in found), None)
        if child is None:
            break
        found[child] = cost(child)
    best = min(found, key=found.__getitem__)
    return Found(best, found[best])


def _child(parents: Sequence[Factors], scale: float, draw: random.Random) -> Factors:
    """A mutation of one parent or a crossing of two, as often one as the other."""
    first, second = draw.choice(parents), draw.choice(parents)
    if first != second and draw.random() < 0.5:
        made = [draw.choice(pair) for pair in zip(first, second, strict=True)]
    else:
        made = [_drawn(scale, draw) if draw.random() < MUTATION else factor for factor in first]
    # The paper rejects lists that decrease somewhere; sorting gives one that does not, from the same numbers.
    return tuple(sorted(made))


def _drawn(scale: float, draw: random.Random) -> float:
    steps = round((max(scale * LARGEST, 1.0) - 1) / STEP)
    return round(1 + STEP * draw.randint(0, steps), 2)

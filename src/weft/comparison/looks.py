"""Looks at a study: each time that its runs are judged, and the share of its chance of error that this may spend.

Whoever adds runs until a difference counts finds one that is not there far oftener than the level says: in 10 to 21 %
of studies of two equal models for 5 % (`recipes/error_rates`). So every look has a level of its own, and by Boole's
inequality all looks together tell equal models apart in at most the sum of their levels, whatever is shared between
them: runs, the text, models, Holm's correction.

    planned     alpha (min(n, N) - n') / N        n: runs of each model, n': at the look before, N: planned before the
                                                  first run: spending in proportion to the runs (Lan and DeMets 1983),
                                                  for which neither number nor times of looks need to be known before
    unplanned   alpha 6 / (pi^2 k^2)              the k-th look, where the plan has been spent or no run of it is new;
                                                  of all such looks together less than 0.4 alpha

Where nothing is planned, N is the number of runs that a study begins with: its first look has alpha whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """One time that a study's runs, all that were then asked for, were judged.

    Attributes:
        when: date and time, ISO 8601, UTC.
        share: of the study's chance of error, that this look was given.
        apart: pairs that it told apart, as ``better < worse``.
        additions: to the study, up to then: judging again what has not grown since is no other look.
    """

    when: str
    runs: int
    models: int
    share: float
    apart: tuple[str, ...] = ()
    additions: int = 0


def share_of(before: Sequence[Look], runs: int, planned: int) -> float:
    """The share of alpha that the next look may spend: 1 for one that is the first and has all planned runs.

    Args:
        before: the looks so far, in order.
        runs: of each model, that will be judged.
        planned: runs of each model, stated before the first one.
    """
    known = min(planned, max((look.runs for look in before), default=0))
    fresh = min(runs, planned) - known
    return fresh / planned if fresh > 0 else 6 / (math.pi * (len(before) + 1)) ** 2


def level(confidence: float, share: float) -> float:
    """The confidence of the intervals of a look with a share of alpha, exactly the study's own for all of it."""
    return confidence if share == 1 else 1 - (1 - confidence) * share

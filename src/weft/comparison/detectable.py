"""What differences a study can be expected to find, told before its first run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from weft.comparison.results import Detectable
from weft.comparison.statistics import detectable_difference, paired_deviation
from weft.comparison.study import StudyConfig
from weft.comparison.trials import Tuning

RUNS = (3, 5, 10)
"""Of each model, for which it is told besides the study's own number."""
TUNED_FIRST = 2
"""Attempts whose trials are made before the first run where nothing is stated: what lies between them is all that is
known then of how far attempts lie apart."""


def tuned_first(study: StudyConfig) -> int:
    """Attempts whose trials come before the first run."""
    wanted = study.tries_rates and study.trials.deviation is None and len(study.seeds) >= TUNED_FIRST
    return TUNED_FIRST if wanted else 0


def detectable_in(study: StudyConfig, pairs: int,
                  tunings: Sequence[Mapping[str, Tuning]]) -> tuple[tuple[Detectable, ...], str]:
    """The smallest difference that 3, 5, 10 and the study's own number of runs can be expected to show, and what that
    rests on, in sentences.

    Args:
        study: says how runs are tested, and perhaps how far they lie apart.
        pairs: of models.
        tunings: of the attempts that have been tuned before the first run.
    """
    deviation, basis = _deviation(study, tunings)
    found = tuple(Detectable(runs, None if deviation is None else detectable_difference(
        deviation, runs, study.confidence, pairs, test=study.test)) for runs in sorted({*RUNS, len(study.seeds)}))
    if deviation is None:
        return found, basis
    name = "Welch's t test" if study.test == "welch" else "the paired t test"
    return found, (f"That is with a power of 0.8, by {name} at level {1 - study.confidence:.2g} / {pairs} (the first "
                   f"step of Holm's correction), {basis}")


def told(found: Sequence[Detectable], basis: str, own: int) -> str:
    """In a line."""
    if all(each.difference is None for each in found):
        return basis
    said = ", ".join(f"{'none' if each.difference is None else f'{each.difference:.2g}'} with {each.runs}"
                     f"{' (this study)' if each.runs == own else ''}" for each in found)
    return f"bits per byte by runs of each model: {said}. {basis}"


def _deviation(study: StudyConfig, tunings: Sequence[Mapping[str, Tuning]]) -> tuple[float | None, str]:
    what = "between two models, run by run," if study.test == "paired" else "between the runs of a model"
    if study.trials.deviation is not None:
        return study.trials.deviation, (f"for a standard deviation {what} of {study.trials.deviation:g} bits per byte, "
                                        "which the study states.")
    best = {name: [found for each in tunings if (found := each[name].best) is not None]
            for name in (tunings[0] if tunings else ())}
    found = paired_deviation(best) if study.test == "paired" else pooled_deviation(list(best.values()))
    if found is None:
        return None, ("The detectable difference is not known before the runs: no model was tuned in two attempts, and "
                      "the study states no trials.deviation.")
    return found, (f"for a standard deviation {what} of {found:.2g} bits per byte, as the best trials of the first two "
                   "attempts show it: a rough figure, from few numbers and of trials, which are shorter than runs.")


def pooled_deviation(samples: Sequence[Sequence[float]]) -> float | None:
    """Standard deviation within samples, pooled over those of two values or more; None without one."""
    known = [each for each in samples if len(each) > 1]
    freedom = sum(len(each) - 1 for each in known)
    squares = math.fsum((len(each) - 1) * float(np.var(each, ddof=1)) for each in known)
    return math.sqrt(squares / freedom) if freedom else None

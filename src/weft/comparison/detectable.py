"""What differences so many runs can show, worked out before the first of them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from weft.comparison.statistics import SeedTest
from weft.comparison.student import quadrature, t_quantile, t_shift
from weft.comparison.study import StudyConfig
from weft.comparison.study_result import Detectable
from weft.comparison.trials import Tuning

POWER = 0.8
RUNS = (3, 5, 10)
"""Of each model, for which it is given besides the study's own number."""

TUNED_FIRST = 2
"""Attempts whose trials are made before the first run where nothing is stated: what lies between them is all that is
known then of how far attempts lie apart."""


def critical_t(runs: int, confidence: float, pairs: int, test: SeedTest) -> tuple[float, float]:
    """What |t| must exceed at the first step of Holm's correction: at the least and at the most.

        t_(1-alpha/2, v),    alpha = (1 - confidence) / pairs

    with v = n - 1 when paired; for Welch's v follows from the spreads that the two models' runs happen to show, from
    2 n - 2 where these are equal to n - 1 where one has none.

    Args:
        runs: n of each model, two at least.
        confidence: of the study.
        pairs: of models.
        test: of two models' runs.
    """
    upper = 1 - (1 - confidence) / pairs / 2
    return t_quantile(upper, runs - 1 if test == "paired" else 2 * runs - 2), t_quantile(upper, runs - 1)


def detectable_difference(deviation: float, runs: int, confidence: float, pairs: int = 1,
                          test: SeedTest = "paired") -> float | None:
    """The smallest true difference that the test finds with a power of 0.8; None with a single run.

        d e,    e = sd / sqrt(n) paired, sd sqrt(2 / n) for Welch's,    P(T' > t) = 0.8

    where T' is noncentral t with shift d and n - 1 or 2 n - 2 degrees of freedom, and t what must be exceeded
    (`critical_t`), for Welch's with the chances of the spreads of n runs. With few runs it is well above the sum of two
    quantiles that is often used: by a fifth with three paired runs and fifteen pairs.

    Args:
        deviation: standard deviation from run to run: of the difference between two models when paired, of one
            model's bits per byte, the same for both, for Welch's.
        runs: n of each model.
        confidence: of the study.
        pairs: of models; the first step of Holm's correction divides alpha by it.
        test: of two models' runs.
    """
    if runs < 2:
        return None
    upper = 1 - (1 - confidence) / pairs / 2
    return deviation * math.sqrt((1 if test == "paired" else 2) / runs) * _shift(runs, upper, test)


@functools.lru_cache(maxsize=1024)
def _shift(runs: int, upper: float, test: SeedTest) -> float:
    """In standard errors, with which the test finds a difference with that power."""
    if test == "paired":
        return t_shift(POWER, [(t_quantile(upper, runs - 1), 1.0)], runs - 1)
    # The share r that one model's variance has of both is Beta((n-1)/2, (n-1)/2), independent of their sum; with
    # r = sin^2 x, x has the density (sin x cos x)^(n-2), which is even about 45 degrees.
    places, weights = quadrature(0.0, math.pi / 4, panels=1)
    chances = weights * (np.sin(places) * np.cos(places)) ** (runs - 2)
    freedoms = (runs - 1) / (np.sin(places) ** 4 + np.cos(places) ** 4)
    limits = [(t_quantile(upper, freedom), chance) for freedom, chance in
              zip(freedoms.tolist(), (chances / chances.sum()).tolist(), strict=True)]
    return t_shift(POWER, limits, 2 * runs - 2)


def paired_deviation(repeats: Mapping[str, Sequence[float]]) -> float | None:
    """Standard deviation of the difference between two models, pooled over all pairs; None without two models that
    were run at least twice with the same pairs of seeds.

    Args:
        repeats: bits per byte of each model, in the same order of seeds.
    """
    known = [values for values in repeats.values() if len(values) > 1]
    spreads = [float(np.var(np.subtract(a, b), ddof=1)) for a, b in itertools.combinations(known, 2)]
    return math.sqrt(sum(spreads) / len(spreads)) if spreads else None


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


def summary(found: Sequence[Detectable], basis: str, own: int) -> str:
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

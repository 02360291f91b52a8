"""From the runs of a study to what can be said: differences of every pair, and who is tied."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.comparison.jobs import Outcome
from weft.comparison.results import CurvePoint, Difference, GapPoint, Interval
from weft.comparison.statistics import Clusters, Test, bootstrap_test, crosses, holm, t_test, tied_sets

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of the budget, at which gaps are read off the curves."""
BOOTSTRAP_SEED = 0


@dataclass(frozen=True)
class Runs:
    """The runs of one model, those that are missing None.

    Attributes:
        trained: by gradients, so that its curve shows a course.
    """

    name: str
    trained: bool
    outcomes: tuple[Outcome | None, ...]

    @property
    def finished(self) -> dict[int, Outcome]:
        """By the number of the pair of seeds."""
        return {index: outcome for index, outcome in enumerate(self.outcomes)
                if outcome is not None and outcome.bits_per_byte is not None}


def differences(models: Sequence[Runs], confidence: float, resamples: int) -> tuple[Difference, ...]:
    """Every pair of models that finished a run with the same seeds, after Holm's correction over all of them."""
    found = [pair for first, second in itertools.combinations(models, 2)
             if (pair := _difference(first, second, confidence, resamples)) is not None]
    corrected = holm([pair.p_value for pair in found])
    return tuple(replace(pair, p_holm=p, tied=p is None or p > 1 - confidence)
                 for pair, p in zip(found, corrected, strict=True))


def sets_of(models: Sequence[Runs], pairs: Sequence[Difference]) -> tuple[tuple[str, ...], ...]:
    """Tied sets of the models that finished a run; two that never finished with the same seeds are not told apart."""
    means = {each.name: float(np.mean([run.bits_per_byte for run in each.finished.values()]))
             for each in models if each.finished}
    tied = {frozenset(pair): True for pair in itertools.combinations(means, 2)}
    tied |= {frozenset((pair.first, pair.second)): pair.tied for pair in pairs}
    return tied_sets(means, tied)


def mean_interval(values: Sequence[float], confidence: float) -> Interval:
    """The mean over runs, by Student's t."""
    return t_test(values, confidence).interval


def _difference(first: Runs, second: Runs, confidence: float, resamples: int) -> Difference | None:
    shared = sorted(first.finished.keys() & second.finished.keys())
    if not shared:
        return None
    pairs = [(first.finished[index], second.finished[index]) for index in shared]
    over_seeds = t_test([_bits(a) - _bits(b) for a, b in pairs], confidence)
    over_documents = bootstrap_test(_clusters([a for a, _ in pairs]), _clusters([b for _, b in pairs]), confidence,
                                    seed=BOOTSTRAP_SEED, resamples=resamples)
    assert over_documents.variance is not None, "a bootstrap always has a variance"
    gaps = _gaps(pairs, confidence) if first.trained and second.trained else ()
    return Difference(first.name, second.name, over_seeds.interval, over_documents.interval, over_seeds.variance,
                      over_documents.variance, _p_value(over_seeds, over_documents), None, True, gaps,
                      crosses([gap.difference for gap in gaps]))


def _clusters(outcomes: Sequence[Outcome]) -> Clusters:
    """The mean over runs, which all were measured on one text."""
    nats = np.array([run.cluster_nats for run in outcomes], dtype=np.float64)
    return Clusters(np.asarray(nats.mean(axis=0)), np.array(outcomes[0].cluster_bytes, dtype=np.int64))


def _p_value(over_seeds: Test, over_documents: Test) -> float | None:
    """Of the wider doubt: both must be overcome. Runs that agree in every document leave none."""
    if over_documents.variance == 0 and over_documents.interval.mean == 0:
        return 1.0
    if over_seeds.p_value is None or over_documents.p_value is None:
        return None
    return max(over_seeds.p_value, over_documents.p_value)


def _gaps(pairs: Sequence[tuple[Outcome, Outcome]], confidence: float) -> tuple[GapPoint, ...]:
    found = []
    for share in SHARES:
        values = [(at_share(a.curve, share), at_share(b.curve, share)) for a, b in pairs]
        known = [x - y for x, y in values if x is not None and y is not None]
        if len(known) == len(pairs):
            found.append(GapPoint(share, t_test(known, confidence).interval))
    return tuple(found)


def at_share(curve: Sequence[CurvePoint], share: float) -> float | None:
    """Bits per byte at a share of a run's steps, between two checkpoints on the line that joins them; None before the
    first."""
    if not curve:
        return None
    steps = np.array([point.step for point in curve], dtype=np.float64)
    wanted = share * steps[-1]
    if wanted < steps[0]:
        return None
    return float(np.interp(wanted, steps, [point.bits_per_byte for point in curve]))


def _bits(outcome: Outcome) -> float:
    assert outcome.bits_per_byte is not None, "a finished run has a figure"
    return outcome.bits_per_byte



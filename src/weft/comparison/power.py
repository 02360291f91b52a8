"""The power of a study: before its runs, by the spread of its runs, and the cost of looking at it more than once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from weft.comparison.looks import Look, level
from weft.comparison.statistics import Interval, effective_clusters, holm
from weft.comparison.student import (
    SeedTest,
    critical_t,
    detectable_difference,
    paired_deviation,
    pooled_deviation,
    spread_interval,
    t_quantile,
)
from weft.comparison.study import StudyConfig
from weft.comparison.study_result import Detectable, StudyResult

RUNS = (3, 5, 10)
"""Of each model, for which the detectable difference is given besides the study's own number."""


class Spread(NamedTuple):
    """How far figures move from run to run and from document to document.

    Attributes:
        deviation: the standard deviation from run to run of a model, in bits per byte (of the difference between two
            models, where runs are paired).
        freedom: degrees of freedom that it was estimated with.
        documents: the standard error of a difference from document to document; 0 where it is not known.
    """

    deviation: float
    freedom: int
    documents: float = 0.0
    others: float = 1.0

    def found(self, runs: int, confidence: float, pairs: int, test: SeedTest) -> float | None:
        """The difference that so many runs find, see `detectable_difference`."""
        return detectable_difference(self.deviation, runs, confidence, max(1, pairs), test,
                                     (self.documents, self.others))


class DetectableRange(NamedTuple):
    """The differences that so many runs can show: the value that |t| must exceed for the clearest of all pairs, at the
    least and at the most, and the smallest difference that is found with a power of 0.8, in bits per byte.

    Attributes:
        critical: None with a single run or model.
        difference: by what was known before the runs; None where nothing was.
        spreads: the same in standard deviations from run to run.
        found: by what runs and documents have shown; None without two runs of a model.
    """

    runs: int
    critical: tuple[float, float] | None
    difference: float | None
    spreads: float | None
    found: float | None


def spread_of(result: StudyResult) -> Spread | None:
    """How far the figures of the trained models move, of those of which every run finished; None without two runs of a
    model (of two models, where runs are paired). What two models have on documents is pooled over their pairs."""
    most = max((len(entry.finished) for entry in result.entries), default=0)
    values = {entry.name: [run.bits_per_byte for run in entry.finished if run.bits_per_byte is not None]
              for entry in result.entries if entry.trainable and len(entry.finished) == most > 1}
    paired = result.test == "paired"
    deviation = paired_deviation(values) if paired else pooled_deviation(list(values.values()))
    if deviation is None:
        return None
    squares = [pair.document_error**2 for pair in result.differences if {pair.first, pair.second} <= values.keys()
               and math.isfinite(pair.document_error)]
    # Paired differences of k models have k - 1 independent ones.
    return Spread(deviation, (most - 1) * (len(values) - paired), math.sqrt(sum(squares) / max(1, len(squares))),
                  max(1.0, effective_clusters(result.corpus.document_bytes) - 1))


def reaches(result: StudyResult) -> tuple[DetectableRange, ...]:
    """For 3, 5 and 10 runs and the study's own number."""
    pairs, spread = math.comb(len(result.entries), 2), spread_of(result)
    return tuple(DetectableRange(
        each.runs, critical_t(each.runs, result.level, pairs, result.test) if each.runs > 1 and pairs else None,
        each.difference, each.spreads,
        None if spread is None else spread.found(each.runs, result.level, pairs, result.test))
        for each in result.detectable)


def reached(result: StudyResult) -> Interval | None:
    """The smallest difference in bits per byte that the study's number of runs finds with a power of 0.8, for other
    runs on another text, by what its runs and documents have shown, with the interval that the error of both together
    leaves (Satterthwaite's degrees of freedom); None without two runs of a model (of two, where runs are paired)."""
    spread = spread_of(result)
    if spread is None or result.seeds < 2:
        return None
    found = spread.found(result.seeds, result.level, math.comb(len(result.entries), 2), result.test)
    assert found is not None, "there are two runs"
    runs = spread.deviation**2 * (1 if result.test == "paired" else 2) / result.seeds
    whole = runs + spread.documents**2
    freedom = whole**2 / (runs**2 / spread.freedom + spread.documents**4 / spread.others) if whole else spread.freedom
    low, high = spread_interval(found, freedom, result.confidence)
    return Interval(found, low, high)


def detectable_in(study: StudyConfig, pairs: int, share: float,
                  before: Spread | None) -> tuple[tuple[Detectable, ...], str]:
    """The smallest difference that 3, 5, 10 and the study's own number of runs can be expected to show, and what that
    rests on, in sentences.

    Trials are no ground for it: they are shorter than runs and chosen by their figure, and in recorded studies their
    spread was up to three times too large and nine times too small.

    Args:
        study: says how runs are tested, and perhaps how far they lie apart.
        share: of the study's level, that the coming look has.
        before: what runs that were made before say of how far figures move, in a study that grows.
    """
    at, stated, known = level(study.confidence, share), study.trials.deviation, before
    if stated is not None:
        known = Spread(stated, 0) if before is None else before._replace(deviation=stated)
    found = [Detectable(runs, *(None if each is None else each.found(runs, at, pairs, study.test)
                                for each in (known, Spread(1.0, 0))))
             for runs in sorted({*RUNS, len(study.seeds)})]
    name = "Welch's t test" if study.test == "welch" else "the paired t test"
    return tuple(found), (f"That is with a power of 0.8, by {name} at level {1 - at:.2g} / {pairs} (for the "
                          f"clearest pair in Holm's correction), {_basis(study, before)} {_documents(before)}")


def _basis(study: StudyConfig, before: Spread | None) -> str:
    what = "between two models, run by run" if study.test == "paired" else "between the runs of a model"
    if study.trials.deviation is not None:
        return f"for a standard deviation {what} of {study.trials.deviation:g} bits per byte, which the study states."
    if before is None:
        return (f"in standard deviations {what}. How large one is, is not known before the runs: the report works the "
                "difference out from them.")
    low, high = spread_interval(before.deviation, before.freedom, study.confidence)
    return (f"for a standard deviation {what} of {before.deviation:.2g} bits per byte ({low:.2g} to {high:.2g}), as "
            "those runs show it that were made before the study grew.")


def _documents(before: Spread | None) -> str:
    if before is None or not before.documents:
        return ("That is on the same text: from text to text a difference varies too, by how much is not known before "
                "the runs, and as the test counts both, what it finds is larger.")
    return (f"With it goes the standard error of a difference from document to document, {before.documents:.2g} bits "
            "per byte in those runs.")


def summary(found: Sequence[Detectable], basis: str, own: int) -> str:
    """In a line."""
    unknown = all(each.difference is None for each in found)
    sizes = [each.spreads if unknown else each.difference for each in found]
    said = ", ".join(f"{'none' if size is None else f'{size:.2g}'} with {each.runs}"
                     f"{' (this study)' if each.runs == own else ''}" for each, size in zip(found, sizes, strict=True))
    return f"{'standard deviations' if unknown else 'bits per byte'} by runs of each model: {said}. {basis}"


def looked(result: StudyResult) -> str | None:
    """How many looks at the study were counted, and what that costs the last one; None where there is one, judged at
    the whole level, as in a study that is run once."""
    if not result.complete:
        done = [run.status != "pending" for entry in result.entries for run in entry.runs]
        return (f"Nothing is told apart yet: {sum(done)} of {len(done)} runs are done, and a study is judged when all "
                f"of them are.{_earlier(result.looks)}")
    if result.share == 1 and len(result.looks) < 2:
        return None
    alpha, seen = 1 - result.confidence, " and ".join(
        [", ".join(str(look.runs) for look in result.looks[:-1]), str(result.looks[-1].runs)][len(result.looks) < 2:])
    return (f"Look {len(result.looks)} at this study (at {seen} runs of each model) is judged at a level of "
            f"{_percent(alpha * result.share)} of the study's {_percent(alpha)}: p-values are multiplied by "
            f"{1 / result.share:.3g} for it, and intervals, at {_percent(result.level)}, are {_wider(result):.2g} "
            f"times as wide as with a single look. {_lost(result)}{_together(result)}{_earlier(result.looks[:-1])}")


def _together(result: StudyResult) -> str:
    """How often all looks together tell equal models apart."""
    alpha, spent = 1 - result.confidence, sum(look.share for look in result.looks)
    if result.planned_runs is not None and spent < 1 + 1e-9:
        return (f" Looks share that level by their runs of the {result.planned_runs} that were planned before the "
                f"first: together they tell equal models apart in at most {_percent(alpha)} of such studies.")
    return (f" Growing so was not planned, and all looks together tell equal models apart in up to "
            f"{_percent(alpha * spent)} of such studies; with planned_runs, stated before the first run, in "
            f"{_percent(alpha)} at most.")


def _lost(result: StudyResult) -> str:
    """The pairs that a study looked at once would tell apart by the same runs."""
    once = holm([pair.p_value for pair in result.differences])
    lost = sum(pair.tied and p is not None and p <= 1 - result.confidence
               for pair, p in zip(result.differences, once, strict=True))
    return (f"A single look at the same runs would tell {lost} more of {len(once)} pairs apart." if lost else
            "A single look at the same runs would tell no more pairs apart.")


def _wider(result: StudyResult) -> float:
    """Intervals over runs beside those of a study looked at once, for models whose runs spread alike."""
    freedom = max(1, (result.seeds - 1) * (1 if result.test == "paired" else 2))
    now, once = (t_quantile((1 + each) / 2, freedom) for each in (result.level, result.confidence))
    return now / once


def _earlier(looks: Sequence[Look]) -> str:
    """The pairs that the looks so far told apart."""
    said = [f"at {look.runs} runs of {look.models} models {', '.join(look.apart) or 'nothing'}"
            for look in looks if look.models]
    return f" Told apart before (better < worse): {'; '.join(said)}." if said else ""


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %" if share < 0.99 else f"{100 * share:.6g} %"

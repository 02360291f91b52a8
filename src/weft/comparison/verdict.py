"""From the runs of a study to what can be said: differences of every pair, and who is tied.

Everything is worked out from the result's own entries, so that each interval and p-value can be worked out again from
its JSON alone.
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np

from weft.comparison.results import RunResult, StudyModel, at_share
from weft.comparison.statistics import (
    Estimate,
    Interval,
    bootstrap_test,
    combined_test,
    effective_clusters,
    equivalence_p,
    holm,
    resampled,
    seed_test,
    t_test,
)
from weft.comparison.student import SeedTest
from weft.comparison.study_result import CorpusFacts, Difference, GapPoint, StudyResult

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of the budget, at which gaps are read off the curves."""

BOOTSTRAP_SEED = 0
ROUNDING = 1e-9
"""Relative: sums in another order, on another processor, differ by less."""


def judged(result: StudyResult) -> StudyResult:
    """The result with the differences and tied sets that its runs give."""
    pairs = differences(result)
    return replace(result, differences=pairs, tied_sets=sets_of(result.entries, pairs))


def disagreement(result: StudyResult) -> str | None:
    """The part of a result that does not follow from its own runs, in words; None where everything does."""
    clusters = len(result.corpus.document_bytes)
    for entry in result.entries:
        for run in entry.finished:
            if len(run.document_nats) != clusters:
                return (f"run {run.index + 1} of {entry.name} has the nats of {len(run.document_nats)} documents, and "
                        f"the test text {clusters}")
    again = judged(result)
    if result.tied_sets != again.tied_sets:
        return "its tied sets do not follow from its runs"
    if len(result.differences) != len(again.differences):
        return f"it has {len(result.differences)} differences, and its runs give {len(again.differences)}"
    for stated, found in zip(result.differences, again.differences, strict=True):
        if not _agree(stated, found):
            return f"the difference of {stated.first} and {stated.second} does not follow from their runs"
    return None


def _agree(stated: object, found: object) -> bool:
    if isinstance(stated, float) and isinstance(found, float):
        return math.isclose(stated, found, rel_tol=ROUNDING, abs_tol=ROUNDING)
    if isinstance(stated, tuple) and isinstance(found, tuple):
        return len(stated) == len(found) and all(map(_agree, stated, found))
    if is_dataclass(stated) and is_dataclass(found):
        return all(_agree(getattr(stated, field.name), getattr(found, field.name)) for field in fields(stated))
    return stated == found


def differences(result: StudyResult) -> tuple[Difference, ...]:
    """Every pair of models that can be compared, after Holm's correction over all of them and for the look.

    ``paired`` compares runs of the same number that both models finished, ``welch`` all that each finished. While runs
    are still to come, nothing is told apart: a study that stops where a difference happens to count finds too many.
    """
    draws = _Draws.of(result.entries, result.corpus, result.resamples)
    found = []
    for first, second in itertools.combinations(result.entries, 2):
        runs = _compared(first, second, result.test)
        if runs is not None:
            found.append(_difference(first, second, *runs, draws, result))
    alpha = 1 - result.confidence
    apart, alike = (_corrected(result, values) for values in (
        [pair.p_value for pair in found], [pair.p_equivalent for pair in found]))
    return tuple(replace(pair, p_holm=p, tied=p is None or p > alpha, p_equivalent=same,
                         equivalent=same is not None and same <= alpha)
                 for pair, p, same in zip(found, apart, alike, strict=True))


def _corrected(result: StudyResult, p_values: Sequence[float | None]) -> list[float | None]:
    """After Holm's correction and for the look; None while runs are still to come."""
    return [None if p is None or not result.complete else min(1.0, p / result.share) for p in holm(p_values)]


def sets_of(entries: Sequence[StudyModel], pairs: Sequence[Difference]) -> tuple[tuple[str, ...], ...]:
    """Tied sets of the models that finished a run; two that could not be compared count as tied."""
    means = {entry.name: entry.bits_per_byte for entry in entries}
    known = {name: mean for name, mean in means.items() if mean is not None}
    tied = {frozenset(pair): True for pair in itertools.combinations(known, 2)}
    tied |= {frozenset((pair.first, pair.second)): pair.tied for pair in pairs}
    return tied_sets(known, tied)


def mean_interval(values: Sequence[float], confidence: float) -> Interval:
    """The mean over runs, by Student's t."""
    return t_test(values, confidence).interval


def shared_runs(first: StudyModel, second: StudyModel) -> list[tuple[RunResult, RunResult]]:
    """Runs of the same number that both models finished, in order."""
    others = {run.index: run for run in second.finished}
    return [(run, others[run.index]) for run in first.finished if run.index in others]


def _compared(first: StudyModel, second: StudyModel, test: SeedTest) -> tuple[list[RunResult], list[RunResult]] | None:
    if test == "paired":
        pairs = shared_runs(first, second)
        runs = [a for a, _ in pairs], [b for _, b in pairs]
    else:
        runs = list(first.finished), list(second.finished)
    return runs if runs[0] and runs[1] else None


@dataclass(frozen=True, eq=False)
class _Draws:
    """Bits per byte of every finished run on the same resampled texts, by model and number of the run.

    Attributes:
        bits: by name of the model and index of the run, [R].
        clusters: effective number of the text's clusters.
    """

    bits: Mapping[tuple[str, int], np.ndarray]
    clusters: float

    @classmethod
    def of(cls, entries: Sequence[StudyModel], corpus: CorpusFacts, resamples: int) -> _Draws:
        runs = [(entry.name, run) for entry in entries for run in entry.finished]
        if not runs:
            return cls({}, 0)
        bits = resampled([run.document_nats for _, run in runs], corpus.document_bytes, seed=BOOTSTRAP_SEED,
                         resamples=resamples)
        return cls({(name, run.index): drawn for (name, run), drawn in zip(runs, bits, strict=True)},
                   effective_clusters(corpus.document_bytes))

    def mean(self, name: str, runs: Sequence[RunResult]) -> np.ndarray:
        """The mean of a model's runs, on each resampled text."""
        drawn: np.ndarray = np.mean([self.bits[name, run.index] for run in runs], axis=0)
        return drawn


def _difference(first: StudyModel, second: StudyModel, ours: Sequence[RunResult], theirs: Sequence[RunResult],
                draws: _Draws, result: StudyResult) -> Difference:
    confidence, test = result.level, result.test
    over_seeds = seed_test(test, bits_of(ours), bits_of(theirs), confidence)
    if [run.document_nats for run in ours] == [run.document_nats for run in theirs]:
        # The same in every document, whatever is drawn.
        over_documents = Estimate(Interval(0.0, 0.0, 0.0), 0.0, 1.0, None)
    else:
        mean = sum(bits_of(ours)) / len(ours) - sum(bits_of(theirs)) / len(theirs)
        over_documents = bootstrap_test(mean, draws.mean(first.name, ours) - draws.mean(second.name, theirs),
                                        draws.clusters, confidence)
    assert over_documents.error is not None, "a bootstrap always has a standard error"
    gaps = _gaps(ours, theirs, confidence, test) if first.trainable and second.trainable else ()
    over_both = combined_test(over_seeds, over_documents, confidence)
    same = None if result.margin is None else equivalence_p(over_seeds, over_documents, result.margin)
    return Difference(first.name, second.name, over_seeds.interval, over_documents.interval, over_both.interval,
                      over_seeds.error, over_documents.error, over_both.p_value, None, True, gaps,
                      crosses([gap.difference for gap in gaps]), same)


def _gaps(ours: Sequence[RunResult], theirs: Sequence[RunResult], confidence: float,
          test: SeedTest) -> tuple[GapPoint, ...]:
    found = []
    for share in SHARES:
        values = [[at_share(run.curve, share) for run in runs] for runs in (ours, theirs)]
        known = [[bits for bits in each if bits is not None] for each in values]
        if [len(each) for each in known] == [len(ours), len(theirs)]:
            found.append(GapPoint(share, seed_test(test, known[0], known[1], confidence).interval))
    return tuple(found)


def crosses(gaps: Sequence[Interval]) -> bool:
    """Whether the order changes on the way: some gap's interval lies wholly on the other side of zero from the last
    one's."""
    sides = [side_of_zero(gap) for gap in gaps]
    return bool(sides) and sides[-1] != 0 and -sides[-1] in sides


def side_of_zero(gap: Interval) -> int:
    """1 where the whole interval lies above zero, -1 where it lies below; 0 where it contains zero or has no bounds."""
    if gap.low is None or gap.high is None or gap.low <= 0 <= gap.high:
        return 0
    return 1 if gap.low > 0 else -1


def bits_of(runs: Sequence[RunResult]) -> list[float]:
    """Bits per byte of the runs that have a figure."""
    return [run.bits_per_byte for run in runs if run.bits_per_byte is not None]


def tied_sets(means: Mapping[str, float], tied: Mapping[frozenset[str], bool]) -> tuple[tuple[str, ...], ...]:
    """The sets of models of which no two are distinguished and that no other model could join: two models share a set
    exactly where they are not distinguished.

    These are the maximal cliques of that graph, by Bron and Kerbosch (1973) with a pivot. Sets, and the models in
    each, stand from best to worst.

    Args:
        means: bits per byte.
        tied: whether the corrected test leaves a pair together.
    """
    order = sorted(means, key=lambda name: (means[name], name))
    rank = {name: place for place, name in enumerate(order)}
    beside = {name: {other for other in order if other != name and tied[frozenset((name, other))]} for name in order}
    found = (sorted(rank[name] for name in members) for members in _cliques(set(), set(order), set(), beside))
    return tuple(tuple(order[place] for place in members) for members in sorted(found) if members)


def _cliques(members: set[str], open_to: set[str], done: set[str],
             beside: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Maximal cliques that hold ``members``, may hold those of ``open_to``, and none of ``done``."""
    if not open_to and not done:
        yield members
        return
    pivot = max(sorted(open_to | done), key=lambda name: len(beside[name] & open_to))
    for name in sorted(open_to - beside[pivot]):
        yield from _cliques(members | {name}, open_to & beside[name], done & beside[name], beside)
        open_to, done = open_to - {name}, done | {name}


def tied_with(name: str, sets: Sequence[Sequence[str]]) -> frozenset[str]:
    """The models that share a set with ``name``."""
    return frozenset(other for each in sets if name in each for other in each) - {name}


def letters(name: str, sets: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Those of a model's sets: a, b, ..., z, aa, ab, ..."""
    return tuple(letter(place) for place, each in enumerate(sets) if name in each)


def letter(place: int) -> str:
    """The letter of the set at that place, from zero on."""
    many = len(string.ascii_lowercase)
    return (letter(place // many - 1) if place >= many else "") + string.ascii_lowercase[place % many]

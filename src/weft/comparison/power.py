"""What a study can show: before its runs, by the spread of its runs, and what looking at it more than once costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from weft.comparison.looks import Look
from weft.comparison.statistics import holm
from weft.comparison.student import critical_t, detectable_difference, paired_deviation, pooled_deviation, t_quantile
from weft.comparison.study_result import StudyResult


class Reach(NamedTuple):
    """What so many runs can show: what |t| must exceed for the clearest of all pairs, at the least and at the most, and
    the smallest difference that is found with a power of 0.8. None with a single run, or without knowing how far runs
    lie apart."""

    runs: int
    critical: tuple[float, float] | None
    difference: float | None


def reaches(result: StudyResult) -> tuple[Reach, ...]:
    """For 3, 5 and 10 runs and the study's own number."""
    pairs = math.comb(len(result.entries), 2)
    return tuple(Reach(each.runs, critical_t(each.runs, result.level, pairs, result.test)
                       if each.runs > 1 and pairs else None, each.difference) for each in result.detectable)


def reached(result: StudyResult) -> float | None:
    """The smallest difference in bits per byte that the study's number of runs finds with a power of 0.8, on its text,
    by the spread that its trained models' runs have shown; None without two runs of a model (of two, where runs are
    paired)."""
    finished = {entry.name: [run.bits_per_byte for run in entry.finished if run.bits_per_byte is not None]
                for entry in result.entries if entry.trainable and len(entry.finished) == result.seeds}
    deviation = paired_deviation(finished) if result.test == "paired" else pooled_deviation(list(finished.values()))
    return None if deviation is None else detectable_difference(
        deviation, result.seeds, result.level, max(1, math.comb(len(result.entries), 2)), result.test)


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
    """What the looks so far told apart."""
    said = [f"at {look.runs} runs of {look.models} models {', '.join(look.apart) or 'nothing'}"
            for look in looks if look.models]
    return f" Told apart before (better < worse): {'; '.join(said)}." if said else ""


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %" if share < 0.99 else f"{100 * share:.6g} %"

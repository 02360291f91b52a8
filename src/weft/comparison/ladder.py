"""A ladder: the same study at several budgets, each in a folder of its own, and what they say together.

    ladder.json        the budgets, the figures at each, and what was found; written first, and after each study
    report.html        the same as a page
    tokens-100000/     the study at a budget, and so on: its own report, and everything by which it goes on

A study at a budget is an ordinary one, with its own trials of learning rates. The largest is told beforehand by the law
of the others, which is written down before it is begun.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.comparison.contestants import Find
from weft.comparison.folder import now, read_json
from weft.comparison.jobs import Options
from weft.comparison.ladder_findings import FORMAT, LadderResult, Runs, crossings, curve_of, said_of, speed_ups
from weft.comparison.progress import StudyListener, StudyProgress
from weft.comparison.report.ladder_page import render_ladder
from weft.comparison.rungs import Rungs, in_words
from weft.comparison.statistics import Interval
from weft.comparison.study import StudyConfig
from weft.comparison.study_result import StudyResult
from weft.comparison.study_runner import Require, run_study
from weft.comparison.verdict import tied_with
from weft.core.errors import CheckpointError
from weft.core.strict_json import build, dumps, plain
from weft.disk.atomic import made, write_file
from weft.disk.lock import WorkFolder, held

LADDER, PAGE = "ladder.json", "report.html"


def run_ladder(rungs: Rungs, study_at: Callable[[float], StudyConfig], out: str | Path, find: Find, options: Options,
               on_progress: StudyListener | None = None, *, require: Require | None = None) -> LadderResult:
    """Run a study at every budget, from the smallest on, or what is left of that; the arguments and errors are those of
    `weft.comparison.study_runner.run_study`.

    Args:
        rungs: the budgets.
        study_at: the study at a budget.
        out: the ladder's folder.
    """
    folder = Path(out)
    studies = [study_at(amount) for amount in rungs.amounts]
    layout = WorkFolder("ladder", LADDER, (PAGE, *map(rungs.folder, range(len(studies)))))
    layout.require_room(folder)
    with made(folder), held(folder, "comparing models at several budgets"):
        known = _known(folder)
        found = list[StudyResult]()
        for place, study in enumerate(studies):
            if place == len(studies) - 1:
                known = _foretold(folder, known, rungs, found, on_progress)
            found.append(run_study(study, folder / rungs.folder(place), find, options, _told(on_progress, rungs, place),
                                   require=require if place == 0 else None))
            result = together(rungs, found, known, options.command)
            _write(folder, result, found)
    return result


def _known(folder: Path) -> dict[str, Any]:
    """The ladder's own record of before; a new one is written where there is none. Raises `CheckpointError`: it is
    damaged."""
    file = folder / LADDER
    if not file.exists():
        write_file(file, dumps({"format": FORMAT, "started": now(), "said_at": ""}, indent=1) + "\n")
    known = read_json(file)
    if known.get("format") != FORMAT:
        raise CheckpointError("the file is no ladder's.", where=str(file), remedy="Choose another folder.")
    return known


def _foretold(folder: Path, known: dict[str, Any], rungs: Rungs, found: Sequence[StudyResult],
              on_progress: StudyListener | None) -> dict[str, Any]:
    """Write down what the laws of the smaller budgets say of the largest. What was written for these budgets stays; of
    a largest budget that has been begun nothing is told any more."""
    if known.get("said_for") == [*rungs.amounts]:
        return known
    begun = (folder / rungs.folder(len(found))).exists()
    said = {} if begun else {
        name: interval for name, runs in runs_of(found).items() if _is_trained(found, name) and
        (interval := said_of(rungs.amounts, runs, found[0].confidence)) is not None}
    known = {**known, "said_at": now() if said else "", "said": plain(said), "said_for": [*rungs.amounts]}
    write_file(folder / LADDER, dumps({**read_json(folder / LADDER), **known}, indent=1) + "\n")
    if said and on_progress is not None:
        text = "; ".join(f"{name} {_bits(each)}" for name, each in said.items())
        done = sum(rungs.amounts[:-1]) / sum(rungs.amounts)
        on_progress(StudyProgress("the largest budget", f"by the law of the others {text} bits/byte", done, None,
                                  lasting=True))
    return known


def _bits(each: Interval) -> str:
    bounds = "" if each.low is None or each.high is None else f" ({each.low:.3f} to {each.high:.3f})"
    return f"{each.mean:.3f}{bounds}"


def _told(listener: StudyListener | None, rungs: Rungs, place: int) -> StudyListener | None:
    """Lines of a study as lines of the ladder, whose work at a budget is in proportion to it."""
    if listener is None:
        return None
    before, own, whole = sum(rungs.amounts[:place]), rungs.amounts[place], sum(rungs.amounts)

    def told(progress: StudyProgress) -> None:
        left = progress.seconds_left
        if left is not None and progress.done < 1:
            left += left / (1 - progress.done) / own * (whole - before - own)
        listener(replace(progress, what=f"{in_words(rungs.axis, own)}: {progress.what}", seconds_left=left,
                         done=(before + progress.done * own) / whole))

    return told


def runs_of(found: Sequence[StudyResult]) -> dict[str, Runs]:
    """The figures of the finished runs of every model, by budget."""
    names = [entry.name for entry in found[0].entries]
    return {name: [[run.bits_per_byte for entry in study.entries if entry.name == name for run in entry.finished
                    if run.bits_per_byte is not None and math.isfinite(run.bits_per_byte)] for study in found]
            for name in names}


def _is_trained(found: Sequence[StudyResult], name: str) -> bool:
    return all(entry.trainable for study in found for entry in study.entries if entry.name == name)


def together(rungs: Rungs, found: Sequence[StudyResult], known: Mapping[str, Any], command: str) -> LadderResult:
    """The findings of the studies at the budgets so far, read together."""
    amounts, confidence = rungs.amounts[:len(found)], found[0].confidence
    runs, complete = runs_of(found), len(found) == len(rungs.amounts)
    said = {name: build(Interval, each) for name, each in (known.get("said") or {}).items()} if complete else {}
    curves = tuple(curve_of(name, amounts, each, confidence, trained=_is_trained(found, name), said=said.get(name))
                   for name, each in runs.items())
    return LadderResult(
        found[0].name, str(known.get("started", "")), rungs.axis, amounts,
        tuple(rungs.folder(place) for place in range(len(found))), confidence, curves,
        crossings(amounts, runs, confidence), speed_ups(amounts, runs, confidence), tuple(map(_best, found)),
        str(known.get("said_at", "")) if complete else "", complete, command)


def _best(study: StudyResult) -> tuple[str, ...]:
    means = {entry.name: entry.bits_per_byte for entry in study.entries}
    ranked = sorted((name for name, mean in means.items() if mean is not None and math.isfinite(mean)),
                    key=lambda name: means[name] or 0.0)
    if not ranked:
        return ()
    tied = tied_with(ranked[0], study.tied_sets)
    return (ranked[0], *(name for name in ranked if name in tied))


def _write(folder: Path, result: LadderResult, found: Sequence[StudyResult]) -> None:
    before = read_json(folder / LADDER)
    write_file(folder / LADDER, dumps({**before, **result.to_json(), "said_at": before.get("said_at", "")},
                                      indent=1) + "\n")
    write_file(folder / PAGE, render_ladder(result, found))

"""Run a small study again and again with other seeds, and count how often its intervals and its test keep their word.

    python recipes/repeatability/run.py

Repetition r has pairs of seeds that no other has, and every second repetition computes with another number of threads,
which rounds differently. Three shares are counted and set beside what a confidence of 0.95 promises:

* *the mean of one repetition lies in the interval of another*. With n runs of a normal spread, the difference of two
  means over the estimated error of one, (m' - m) / (s / sqrt n), is sqrt 2 times a Student t with n - 1 degrees of
  freedom; so the share is P(|T| <= t / sqrt 2), with t the quantile of the interval;
* *the mean of all R repetitions lies in the interval of one*. The repetition's own mean is part of it, so the variance
  of their difference is (1 - 1/R) of that of a mean: P(|T| <= t / sqrt(1 - 1/R));
* *a model is told apart from itself* under another name with other seeds: 1 - 0.95 of the intervals of the difference
  lie beside zero, and fewer are told apart after the correction over all pairs.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

import weft
from weft.api.configs import config_path
from weft.comparison.jobs import Options
from weft.comparison.statistics import t_test
from weft.comparison.student import t_quantile, t_two_sided
from weft.comparison.study import read_study
from weft.comparison.study_result import StudyResult
from weft.comparison.study_runner import run_study

HERE = Path(__file__).parent
STUDY, RESULT = HERE / "study.yaml", HERE / "result.json"
REPETITIONS, THREADS = 20, (1, 2)
TWINS = ("lstm", "lstm_again")
ORDER = 1_000_000
"""Where the seeds of the order begin."""


def study_sha256() -> str:
    """A hash of the study; comments are not among it."""
    plain = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def pairs(repetition: int, count: int) -> list[dict[str, int]]:
    """Seeds of a repetition, a hundred apart from those of the next."""
    return [{"seed": 100 * repetition + index, "order_seed": ORDER + 100 * repetition + index}
            for index in range(count)]


def repeat(repetition: int, folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """One repetition: figures and learning rates of every run, and what the study says of the twins."""
    runs = len(read_study(study=STUDY, given=given).seeds)
    study = read_study(study=STUDY, given={**given, "seeds": pairs(repetition, runs)})
    threads = THREADS[repetition % len(THREADS)]
    found = run_study(study, folder, config_path, Options(threads=threads, own_processes=False))
    unfinished = [run.note for entry in found.entries for run in entry.runs if run.status != "finished"]
    if unfinished:
        raise SystemExit(f"repetition {repetition}: {unfinished[0]}")
    return {"threads": threads, "twins": twins_of(found),
            "bits_per_byte": {entry.name: [run.bits_per_byte for run in entry.runs] for entry in found.entries},
            "lr": {entry.name: [run.lr for run in entry.runs] for entry in found.entries}}


def twins_of(found: StudyResult) -> dict[str, Any]:
    """Whether the study finds a difference between a model and itself."""
    pair = next(each for each in found.differences if {each.first, each.second} == set(TWINS))
    over = pair.over_seeds
    assert over.low is not None and over.high is not None, "several runs give an interval"
    return {"beside_zero": not over.low <= 0 <= over.high, "told_apart": not pair.tied}


def expected(runs: int, repetitions: int, confidence: float) -> dict[str, float]:
    """The shares that are promised, see above."""
    t = t_quantile((1 + confidence) / 2, runs - 1)
    return {"another_mean": 1 - t_two_sided(t / math.sqrt(2), runs - 1),
            "grand_mean": 1 - t_two_sided(t / math.sqrt(1 - 1 / repetitions), runs - 1),
            "twins_beside_zero": 1 - confidence}


def counted(repetitions: Sequence[Mapping[str, Any]], confidence: float) -> dict[str, Any]:
    """The shares that came about."""
    models, total = {}, len(repetitions)
    for name in repetitions[0]["bits_per_byte"]:
        intervals = [t_test(each["bits_per_byte"][name], confidence).interval for each in repetitions]
        means = [each.mean for each in intervals]

        def inside(value: float, place: int, intervals: Sequence[Any] = intervals) -> bool:
            return bool(intervals[place].low <= value <= intervals[place].high)

        ordered = list(itertools.permutations(range(total), 2))
        crossed = [(a, b) for a, b in ordered if repetitions[a]["threads"] != repetitions[b]["threads"]]
        grand = statistics.fmean(means)
        rates = sorted({lr for each in repetitions for lr in each["lr"][name]})
        models[name] = {
            "grand_mean": grand, "deviation_of_means": statistics.stdev(means),
            "mean_half_width": statistics.fmean(each.high - each.mean for each in intervals if each.high is not None),
            "another_mean": _share([inside(means[b], a) for a, b in ordered]),
            "another_mean_other_threads": _share([inside(means[b], a) for a, b in crossed]),
            "grand_mean_inside": sum(inside(grand, place) for place in range(total)),
            "rates": {f"{lr:g}": sum(each["lr"][name].count(lr) for each in repetitions) for lr in rates}}
    orders = [tuple(sorted(set(models) - {TWINS[1]}, key=lambda name: statistics.fmean(each["bits_per_byte"][name])))
              for each in repetitions]
    return {"models": models, "twins_beside_zero": sum(each["twins"]["beside_zero"] for each in repetitions),
            "twins_told_apart": sum(each["twins"]["told_apart"] for each in repetitions),
            "orders": {" < ".join(order): orders.count(order) for order in sorted(set(orders))}}


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found) if found else math.nan


def record(repetitions: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """What is kept: the promise, the count, and the figures it was made from."""
    confidence = read_study(study=STUDY).confidence
    runs = len(next(iter(repetitions[0]["bits_per_byte"].values())))
    return {"study_sha256": study_sha256(), "confidence": confidence, "runs": runs, "processor_seconds": round(seconds),
            "expected": expected(runs, len(repetitions), confidence), "counted": counted(repetitions, confidence),
            "weft": weft.__version__, "torch": torch.__version__, "python": platform.python_version(),
            "repetitions": list(repetitions)}


def begun_before(out: Path) -> tuple[list[dict[str, Any]], float]:
    """The repetitions of this study that were interrupted, and the seconds that they took."""
    known = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    if known.get("study_sha256") != study_sha256() or len(known["repetitions"]) >= REPETITIONS:
        return [], 0.0
    return known["repetitions"], float(known["processor_seconds"])


def main() -> None:
    """Repeat, count, and write the result; a call that was interrupted is gone on with."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--repetitions", type=int, default=REPETITIONS)
    options.add_argument("--out", type=Path, default=RESULT)
    chosen = options.parse_args()
    found, spent = begun_before(chosen.out)
    for index in range(len(found), chosen.repetitions):
        begun = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            found.append(repeat(index, Path(folder) / "study", {}))
        means = {name: f"{statistics.fmean(each):.4f}" for name, each in found[-1]["bits_per_byte"].items()}
        print(f"{index + 1} of {chosen.repetitions}, {found[-1]['threads']} threads: {means}", flush=True)
        spent += time.process_time() - begun
        if len(found) > 1:
            chosen.out.write_text(json.dumps(record(found, spent), indent=1) + "\n", encoding="utf-8")
    result = record(found, spent)
    print(json.dumps({"expected": result["expected"], "counted": result["counted"]}, indent=1))


if __name__ == "__main__":
    main()

"""AdamW, Adafactor and Muon at equal tuning effort: the study of study.yaml, and its page.

    python recipes/optimizers/run.py                about ten minutes on one core
    python recipes/optimizers/run.py --steps 8 --seeds 2 --out /tmp/optimizers       a trial
    python recipes/optimizers/run.py --draw         the page and pictures of result.json anew

The study is one of `weft compare`, and every attempt at an optimiser contains its own search for a rate. Writes
result.json, README.md and two pictures beside itself; the study's own folder with its report is --runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import yaml

from weft.api.configs import config_path
from weft.comparison.jobs import Options
from weft.comparison.statistics import t_test
from weft.comparison.study import read_study
from weft.comparison.study_runner import run_study
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure

HERE = Path(__file__).parent
STUDY = HERE / "study.yaml"


def study_sha256() -> str:
    """A hash of the study; comments are not among it."""
    return hashlib.sha256(json.dumps(yaml.safe_load(STUDY.read_text("utf-8")), sort_keys=True).encode()).hexdigest()


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a study's result."""
    models = {}
    for entry in found["entries"]:
        runs = entry["runs"]
        models[entry["name"]] = {
            "bits_per_byte": [run["bits_per_byte"] for run in runs], "lr": [run["lr"] for run in runs],
            "edge": any(run["edge"] for run in runs), "parameters": entry["parameters"],
            "trials": [{f"{trial['lr']:g}": trial["bits_per_byte"] for trial in run["trials"]} for run in runs],
            "curve": [[[point["step"], point["bits_per_byte"]] for point in run["curve"]] for run in runs]}
    pairs = [{"first": each["first"], "second": each["second"], "tied": each["tied"], "p": each["p_holm"],
              **each["over_seeds"]} for each in found["differences"]]
    steps = found["entries"][0]["runs"][0]["steps"]
    return {"study_sha256": study_sha256(), "confidence": found["confidence"], "seeds": found["seeds"], "steps": steps,
            "tokens": found["entries"][0]["runs"][0]["tokens"], "models": models, "differences": pairs,
            "torch": found["machine"]["torch"], "processor": found["machine"]["processor"]}


def interval(values: list[float], confidence: float) -> str:
    """The mean and half its interval over attempts."""
    found = t_test(values, confidence).interval
    return f"{found.mean:.4f}" + ("" if found.low is None else f" ± {found.mean - found.low:.4f}")


def verdict(pair: dict[str, Any]) -> str:
    """A difference in words."""
    better, worse = (pair["first"], pair["second"]) if pair["mean"] < 0 else (pair["second"], pair["first"])
    if pair["tied"]:
        return f"{better} and {worse} are not told apart (difference {abs(pair['mean']):.4f})"
    low, high = sorted((abs(pair["low"]), abs(pair["high"])))
    return f"{better} is better than {worse} by {abs(pair['mean']):.4f} ({low:.4f} to {high:.4f}), p = {pair['p']:.2g}"


def page(found: dict[str, Any]) -> str:
    """README.md."""
    rows = []
    for name, each in sorted(found["models"].items(), key=lambda item: statistics.fmean(item[1]["bits_per_byte"])):
        tried = sorted({float(rate) for trials in each["trials"] for rate in trials})
        chosen = sorted(set(each["lr"]))
        rows.append(f"| {name} | {interval(each['bits_per_byte'], found['confidence'])} | "
                    f"{', '.join(f'{rate:.2g}' for rate in chosen)}{'!' if each['edge'] else ''} | "
                    f"{', '.join(f'{rate:.2g}' for rate in tried)} | "
                    f"{statistics.fmean(len(trials) for trials in each['trials']):g} |")
    parameters = next(iter(found["models"].values()))["parameters"]
    return "\n".join([
        "# AdamW, Adafactor and Muon at equal tuning effort", "",
        "Which optimiser makes more of the same steps, where each has had the same search for its rate?", "",
        "    python recipes/optimizers/run.py", "",
        f"One decoder of {parameters:,} parameters on the source code of Python's standard library, {found['steps']:,} "
        f"steps, {found['tokens']:,} tokens ([study.yaml](study.yaml)). Each of {found['seeds']} attempts at an "
        "optimiser tries its rates with seeds of its own, for a quarter of the steps each, and trains the best in "
        "full; where a best rate lies at the edge, every optimiser tries one more. So the intervals, at "
        f"{found['confidence']:.0%}, contain the choice of the rate. The rate alone is tuned: momentum, decay and the "
        "rate of Muon's AdamW are as study.yaml or the defaults have them.", "",
        "![Held-out bits per byte during training](training.svg)", "", "![Trials of rates](rates.svg)", "",
        "| optimiser | bits per byte | rates chosen | rates tried | trials of an attempt |",
        "| --- | ---: | --- | --- | ---: |", *rows, "",
        "`!`: in some attempt a best rate lay at the edge of those tried.", "",
        "Differences in bits per byte, over attempts:", "",
        *(f"* {verdict(each)}" for each in found["differences"]), "",
        "What follows is of a small model and a short run. The same study in processes of its own, with a report, and "
        "the larger one:", "", "```text", "weft compare --study recipes/optimizers/study.yaml --out runs/optimizers",
        "weft compare --study recipes/optimizers/study.yaml --data TEXT length.steps=20000 --out runs/optimizers_large",
        "```", "", f"torch {found['torch']}, {found['processor']}.", ""])


def pictures(found: dict[str, Any]) -> list[Figure]:
    """The course of training, and the trials."""
    courses, trials = [], []
    for style, (name, each) in enumerate(found["models"].items()):
        steps = [step for step, _ in each["curve"][0]]
        courses.append(Curve(name, [(step, statistics.fmean(run[place][1] for run in each["curve"]))
                                    for place, step in enumerate(steps)], style, dots=True))
        rates = sorted({rate for run in each["trials"] for rate in run}, key=float)
        trials.append(Curve(name, [(math.log10(float(rate)), statistics.fmean(run[rate] for run in each["trials"]
                                                                              if rate in run))
                                   for rate in rates], style, dots=True))
    return [chart("training", "Held-out bits per byte during training", "The mean over attempts for each optimiser.",
                  courses, "steps", "bits per byte", width=520, height=280),
            chart("rates", "Trials of rates", "Bits per byte of the trials against the rate, mean over attempts.",
                  trials, "log10 of the learning rate", "bits per byte of trials", width=520, height=280)]


def write(found: dict[str, Any], out: Path) -> None:
    """The page and the pictures."""
    (out / "README.md").write_text(page(found), encoding="utf-8")
    for figure in pictures(found):
        (out / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


def main() -> None:
    """Run, and write what was found."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int)
    options.add_argument("--seeds", type=int)
    options.add_argument("--out", type=Path, default=HERE)
    options.add_argument("--runs", type=Path, default=Path("runs/optimizers"))
    options.add_argument("--draw", action="store_true")
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "result.json"
    if not given.draw:
        more: dict[str, Any] = {} if given.steps is None else {"length": {"steps": given.steps}}
        more |= {} if given.seeds is None else {"seeds": given.seeds}
        begun = time.process_time()
        run_study(read_study(study=STUDY, given=more), given.runs, config_path,
                  Options(threads=1, own_processes=False, command=f"weft compare --study {STUDY.name}"))
        found = summary(json.loads((given.runs / "result.json").read_text(encoding="utf-8")))
        found["processor_seconds"] = round(time.process_time() - begun)
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    write(json.loads(file.read_text(encoding="utf-8")), given.out)


if __name__ == "__main__":
    main()

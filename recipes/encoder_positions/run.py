"""Rotary against learned absolute positions in an encoder: the loss of hidden tokens, then SST-2 and CoLA.

    python recipes/encoder_positions/run.py --books books --sst2 sst2 --cola cola --out runs/encoder_positions --record

Each seed trains both models on the same text in the same order, and fine-tunes each on both tasks. A run whose folder
is complete is read and not repeated, so that the same command goes on where it stopped. `--scale` is a factor of all
steps of the configurations: 0.25 for what is recorded, 1 for the whole of them, 0.01 to see that everything works.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import yaml

import weft
from weft import api
from weft.comparison.statistics import t_test
from weft.disk.atomic import write_file
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.ops.processor import processor_name
from weft.training import print_event

HERE = Path(__file__).parent
MODELS = ("learned", "rotary")
FIELDS = "origin\tlabel\tmark\tsentence\n"
"""The fields of CoLA's files, which lack a line of names."""
MEASURES: Mapping[str, tuple[str, str]] = {
    "masked": ("loss", "hidden tokens"), "sst2": ("accuracy", "SST-2"), "cola": ("matthews", "CoLA")}
"""The measure of each task, and what the task is called."""
WORDS: Mapping[str, str] = {"loss": "loss", "accuracy": "accuracy", "matthews": "Matthews' correlation"}
CONFIDENCE = 0.95
RESULT, README = HERE / "result.json", HERE / "README.md"
BEGIN, END = "<!-- result -->\n", "<!-- /result -->\n"


def with_header(source: Path, folder: Path) -> Path:
    """A copy of a file of CoLA with the line that names its fields."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / source.name
    path.write_text(FIELDS + source.read_text(encoding="utf-8"), encoding="utf-8")
    return path


def steps_of(config: Mapping[str, Any], scale: float) -> int:
    """Steps of a run."""
    steps: int = config["training"]["steps"]
    return max(1, round(scale * steps))


def measured(config: Mapping[str, Any], out: Path, options: argparse.Namespace) -> dict[str, float]:
    """Train unless the folder holds a finished run; its measures on all held-out data."""
    result = out / "measured.json"
    if not result.is_file():
        training = {**config["training"], "steps": steps_of(config, options.scale)}
        if not (out / "checkpoints").is_dir():
            file = out.with_suffix(".yaml")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(yaml.safe_dump({**config, "training": training}), encoding="utf-8")
            weft.train(str(file), out=str(out), device=options.device, on_event=print_event)
        measures = api.measure(weft.load(out, device=options.device)).named()
        result.write_text(json.dumps(measures, indent=1) + "\n", encoding="utf-8")
    found: dict[str, float] = json.loads(result.read_text(encoding="utf-8"))
    return found


def one_seed(seed: int, options: argparse.Namespace, cola: Mapping[str, Path]) -> dict[str, Any]:
    """What each model of a seed gives in each task, and the course of its pre-training."""
    found: dict[str, Any] = {}
    for name in MODELS:
        plain, folder = yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8")), options.out / f"seed{seed}"
        data = {**plain["data"], "path": str(options.books), "order_seed": seed}
        found[name] = {"masked": measured({**plain, "data": data, "seed": seed}, folder / name, options)["loss"],
                       "course": course(folder / name)}
        files = {"sst2": (options.sst2 / "train.tsv", options.sst2 / "test.tsv"), "cola": (cola["train"], cola["dev"])}
        for task, (train, held_out) in files.items():
            tuning = yaml.safe_load((HERE / f"{task}.yaml").read_text(encoding="utf-8"))
            config = {**tuning, "start": str(folder / name), "seed": seed,
                      "data": {"path": str(train), "validation_path": str(held_out), "order_seed": seed}}
            found[name][task] = measured(config, folder / f"{name}_{task}", options)[MEASURES[task][0]]
    return found


def course(run: Path) -> list[tuple[int, float]]:
    """The loss of hidden tokens on held-out text during a run, by step."""
    events = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [(event["step"], event["validation"]["loss"]) for event in events if event["event"] == "validated"]


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Mean and 95 % interval of each measure, and of the difference within seeds."""
    lines = ["| | learned | rotary | rotary - learned |", "| --- | ---: | ---: | ---: |"]
    for task, (measure, name) in MEASURES.items():
        columns = [[run[name_of][task] for run in runs] for name_of in MODELS]
        cells = [interval(values) for values in (*columns, differences(runs, task))]
        lines.append(f"| {name}: {WORDS[measure]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def differences(runs: Sequence[Mapping[str, Any]], task: str) -> list[float]:
    """How much more the rotary model has than the learned one, for each seed."""
    learned, rotary = ([run[name][task] for run in runs] for name in MODELS)
    return [b - a for a, b in zip(learned, rotary, strict=True)]


def interval(values: Sequence[float]) -> str:
    """The mean and, of several values that are not all one, half the width of its interval: runs that agree in every
    digit, as where each gives all sentences one class, tell nothing of others."""
    if len(set(values)) == 1 and len(values) > 1:
        return f"{values[0]:.4f} in every run"
    found = t_test(values, CONFIDENCE).interval
    return f"{found.mean:.4f}" + ("" if found.low is None else f" ± {found.mean - found.low:.4f}")


def verdict(runs: Sequence[Mapping[str, Any]], task: str) -> str:
    """Whether the claim stands in a task, in words."""
    measure, name = MEASURES[task]
    if measure == "matthews" and not any(run[kind][task] for run in runs for kind in MODELS):
        return f"{name}: the {WORDS[measure]} of every run is 0, so fine-tuning found nothing, and nothing is compared."
    found = t_test(differences(runs, task), CONFIDENCE).interval
    if found.low is None or found.high is None:
        return f"{name}: one seed tells nothing of the difference."
    if found.low <= 0 <= found.high:
        return f"{name}: the two are not told apart in their {WORDS[measure]}."
    better = (found.mean < 0) == (measure == "loss")
    return (f"{name}: the {WORDS[measure]} with rotary positions is {'better' if better else 'worse'}, by "
            f"{abs(found.mean):.4f}.")


def halfway(record: Mapping[str, Any]) -> str:
    """After how many steps the rotary model has the loss that the learned one ends with, in words."""
    learned, rotary = mean_course(record, "learned"), mean_course(record, "rotary")
    step = next((step for step, loss in rotary if loss <= learned[-1][1]), None)
    if step in (None, learned[-1][0]):
        return "The mean loss with rotary positions is not before the end what learned positions end with."
    return f"With rotary positions {step:,} of {learned[-1][0]:,} steps are enough for the mean loss that learned " \
           "positions end with."


def counted(seeds: int) -> str:
    """The seeds, and what the figures beside them are."""
    return "One seed" if seeds == 1 else (
        f"{seeds} seeds, with intervals of {CONFIDENCE:.0%} and the difference within seeds,")


def mean_course(record: Mapping[str, Any], name: str) -> list[tuple[int, float]]:
    """The mean over seeds of a model's loss, by step."""
    courses = [run[name]["course"] for run in record["runs"]]
    return [(step, statistics.fmean(each[place][1] for each in courses)) for place, (step, _) in enumerate(courses[0])]


def page(record: Mapping[str, Any]) -> str:
    """What the README says of a result."""
    runs = record["runs"]
    steps = ", ".join(f"{count:,} ({name})" for name, count in record["steps"].items())
    return "\n".join([
        f"{counted(len(runs))} on {record['processor']}, torch {record['torch']}; steps: {steps}.", "", table(runs), "",
        *(f"* {verdict(runs, task)}" for task in MEASURES), f"* {halfway(record)}", "",
        "![The loss of hidden tokens during pre-training](course.svg)", ""])


def picture(record: Mapping[str, Any]) -> Figure:
    """The loss of hidden tokens against the steps."""
    curves = [Curve(name, mean_course(record, name), style, dots=True) for style, name in enumerate(MODELS)]
    return chart("course", "Loss of hidden tokens on held-out text", "The mean over seeds for each kind of positions.",
                 curves, "steps", "nats per hidden token", width=520, height=280)


def write(record: Mapping[str, Any]) -> None:
    """result.json, the README's table and the picture."""
    write_file(RESULT, json.dumps(record, indent=1, sort_keys=True) + "\n")
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    write_file(README, f"{before}{BEGIN}{page(record)}{END}{rest.partition(END)[2]}")
    write_file(HERE / "course.svg", f"{picture(record).alone()}\n")


def main() -> None:
    """Run all seeds, and print or record the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("books", "sst2", "cola", "out"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, each in a process of its own")
    parser.add_argument("--record", action="store_true", help="write the result beside this file")
    parser.add_argument("--draw", action="store_true", help="write page and picture of the recorded result anew")
    options = parser.parse_args()
    if options.draw:
        write(json.loads(RESULT.read_text(encoding="utf-8")))
        return
    if None in (options.books, options.sst2, options.cola, options.out):
        parser.error("--books, --sst2, --cola and --out are needed")
    cola = {part: with_header(options.cola / f"{part}.tsv", options.out / "cola") for part in ("train", "dev")}
    if options.jobs == 1:
        runs = [one_seed(seed, options, cola) for seed in range(options.seeds)]
    else:
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            runs = list(pool.map(one_seed, range(options.seeds), repeat(options), repeat(cola)))
    steps = {name: steps_of(yaml.safe_load((HERE / f"{file}.yaml").read_text(encoding="utf-8")), options.scale)
             for name, file in (("hidden tokens", "rotary"), ("SST-2", "sst2"), ("CoLA", "cola"))}
    record = {"runs": runs, "steps": steps, "processor": processor_name(), "torch": torch.__version__}
    print(table(runs))
    if options.record:
        write(record)


if __name__ == "__main__":
    main()

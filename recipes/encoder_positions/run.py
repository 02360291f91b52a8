"""Rotary against learned absolute positions in an encoder: the loss of hidden tokens, then SST-2 and CoLA.

    python recipes/encoder_positions/run.py --books books --sst2 sst2 --cola cola --out runs/encoder_positions

Each seed trains both models on the same text in the same order, and fine-tunes each on both tasks. A run whose folder
is complete is read and not repeated, so that the same command goes on where it stopped. `--scale 0.05` takes a
twentieth of all steps, to see that everything works.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

import weft
from weft import api
from weft.comparison.student import t_quantile

HERE = Path(__file__).parent
MODELS = ("learned", "rotary")
FIELDS = "origin\tlabel\tmark\tsentence\n"
"""The fields of CoLA's files, which lack a line of names."""
MEASURES: Mapping[str, str] = {"masked": "loss", "sst2": "accuracy", "cola": "matthews"}


def with_header(source: Path, folder: Path) -> Path:
    """A copy of a file of CoLA with the line that names its fields."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / source.name
    path.write_text(FIELDS + source.read_text(encoding="utf-8"), encoding="utf-8")
    return path


def measured(config: Mapping[str, Any], out: Path, options: argparse.Namespace) -> dict[str, float]:
    """Train unless the folder holds a finished run; its measures on all held-out data."""
    result = out / "measured.json"
    if not result.is_file():
        training = {**config["training"], "steps": max(1, round(options.scale * config["training"]["steps"]))}
        if not (out / "checkpoints").is_dir():
            file = out.with_suffix(".yaml")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(yaml.safe_dump({**config, "training": training}), encoding="utf-8")
            weft.train(str(file), out=str(out), device=options.device)
        measures = api.measure(weft.load(out, device=options.device)).named()
        result.write_text(json.dumps(measures, indent=1) + "\n", encoding="utf-8")
    found: dict[str, float] = json.loads(result.read_text(encoding="utf-8"))
    return found


def one_seed(seed: int, options: argparse.Namespace, cola: Mapping[str, Path]) -> dict[str, dict[str, float]]:
    """What each model of a seed gives in each task."""
    found: dict[str, dict[str, float]] = {}
    for name in MODELS:
        plain, folder = yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8")), options.out / f"seed{seed}"
        data = {**plain["data"], "path": str(options.books), "order_seed": seed}
        found[name] = {"masked": measured({**plain, "data": data, "seed": seed}, folder / name, options)["loss"]}
        files = {"sst2": (options.sst2 / "train.tsv", options.sst2 / "test.tsv"), "cola": (cola["train"], cola["dev"])}
        for task, (train, held_out) in files.items():
            tuning = yaml.safe_load((HERE / f"{task}.yaml").read_text(encoding="utf-8"))
            config = {**tuning, "start": str(folder / name), "seed": seed,
                      "data": {"path": str(train), "validation_path": str(held_out), "order_seed": seed}}
            found[name][task] = measured(config, folder / f"{name}_{task}", options)[MEASURES[task]]
    return found


def table(runs: list[dict[str, dict[str, float]]]) -> str:
    """Mean and 95 % interval of each measure, and of the difference within seeds."""
    lines = ["| | learned | rotary | rotary - learned |", "| --- | ---: | ---: | ---: |"]
    for task, measure in MEASURES.items():
        columns = [[run[name][task] for run in runs] for name in MODELS]
        difference = [b - a for a, b in zip(*columns, strict=True)]
        lines.append(f"| {task}: {measure} | " + " | ".join(map(interval, (*columns, difference))) + " |")
    return "\n".join(lines)


def interval(values: list[float]) -> str:
    """The mean and, of several values, half the width of its interval."""
    if len(values) < 2:
        return f"{values[0]:.4f}"
    half = t_quantile(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.4f} ± {half:.4f}"


def main() -> None:
    """Run all seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("books", "sst2", "cola", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time, each in a process of its own")
    options = parser.parse_args()
    cola = {part: with_header(options.cola / f"{part}.tsv", options.out / "cola") for part in ("train", "dev")}
    if options.jobs == 1:
        runs = [one_seed(seed, options, cola) for seed in range(options.seeds)]
    else:
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            runs = list(pool.map(one_seed, range(options.seeds), repeat(options), repeat(cola)))
    (options.out / "result.json").write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    print(table(runs))


if __name__ == "__main__":
    main()

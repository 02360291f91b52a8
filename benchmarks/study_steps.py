"""Training steps of the models of the README's study, in turns: tokens a second of each, and S4D against the
Transformer.

    python benchmarks/study_steps.py [--study recipes/six_ages/result.json] [--steps 60]     # idle; a minute

The configurations are those that the recorded study trained, with its batches of four rows of 64 tokens, on random
tokens. Every model takes a step in turn; ratios to the Transformer are medians over the turns. Writes
``results/study_steps.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from training_weft import stream_of

from weft.ops.native.library import describe
from weft.ops.processor import processor_name
from weft.training import parse_run
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

STUDY = Path(__file__).parent.parent / "recipes" / "six_ages" / "result.json"
RESULTS = Path(__file__).parent / "results" / "study_steps.json"
BASE = "transformer"
WARM = 3
"""Turns before those that count: they fill caches and adapt chunks."""


def trainer_of(config: str, steps: int) -> Trainer:
    """A model of the study and what trains it."""
    given: dict[str, Any] = yaml.safe_load(config)
    run = parse_run({name: given[name] for name in ("model", "training")})
    torch.manual_seed(0)
    vocabulary = given["model"]["vocab_size"]
    tokens = torch.randint(vocabulary, (steps * run.training.batch_size * given["training"]["context"] + 1,),
                           generator=torch.Generator().manual_seed(0))
    return Trainer(run, build_model(run), stream_of(tokens, vocabulary), steps=steps, device="cpu")


def measured(study: Path, steps: int) -> dict[str, Any]:
    """Seconds of every model's steps, in turns."""
    entries = {each["name"]: each for each in json.loads(study.read_text(encoding="utf-8"))["entries"]
               if each["trainable"]}
    trainers = {name: trainer_of(each["config"], steps + WARM) for name, each in entries.items()}
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(steps + WARM):
        for name, trainer in trainers.items():
            begun = time.perf_counter()
            trainer.advance()
            seconds[name].append(time.perf_counter() - begun)
    sizes = {name: yaml.safe_load(each["config"])["training"] for name, each in entries.items()}
    return {name: {
        "tokens per second": sizes[name]["batch_size"] * sizes[name]["context"] / statistics.median(taken[WARM:]),
        f"times {BASE}": statistics.median(a / b for a, b in zip(seconds[BASE][WARM:], taken[WARM:], strict=True)),
        "parameters": entries[name]["parameters"]} for name, taken in seconds.items()}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--note", default="", help="written into the results")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    load, models = os.getloadavg()[0], measured(given.study, given.steps)
    report = {"processor": processor_name(), "threads": given.threads, "torch": torch.__version__,
              "native code": describe().split(",")[0], "date": datetime.date.today().isoformat(),
              "load": {"before": load, "after": os.getloadavg()[0]}, "note": given.note,
              "wanted": {f"s4d, times {BASE}": 1.0}, "models": models}
    print(json.dumps(report, indent=1))
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

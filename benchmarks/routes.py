"""Training steps of presets with routes of matrix products that are kept, measured anew and PyTorch's own, in turns.

    python benchmarks/routes.py [--presets transformer s4d] [--steps 40]     # idle; some minutes

A machine measures the routes of a preset's products once and keeps them in its cache (``weft doctor``). Here they are
measured in two empty caches: *kept* reads the first one's again, as every later run does, and *anew* takes what the
second one found, as every run did that measured for itself; *default* is ``training.compute.matmul: default``. Every
trainer takes a step in turn on the same random tokens; ratios to *anew* are medians over the turns, with their
quartiles, of processor time on one thread, which other programs change less than seconds. ``starts`` is that until a
trainer is ready, of which measuring is a part. Writes ``results/routes.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from study_steps import WARM, trainer_of

from weft.api.configs import read_config
from weft.ops.processor import processor_name
from weft.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "routes.json"
VOCABULARY = 1024
BASE = "anew"


def config_of(preset: str, matmul: str) -> str:
    """A preset's model and training with a way to choose routes, as YAML."""
    found: dict[str, Any] = read_config(preset)
    training = {key: value for key, value in found["training"].items() if key != "seconds"}
    return yaml.safe_dump({"model": {**found["model"], "vocab_size": VOCABULARY}, "training": {
        **training, "context": found["model"]["context"], "compute": {"matmul": matmul}}})


def started(config: str, steps: int, cache: Path) -> tuple[Trainer, float]:
    """A trainer whose routes are kept in a cache of its own, and the processor time that it took to build."""
    os.environ["WEFT_CACHE_DIR"] = str(cache)
    begun = time.process_time()
    return trainer_of(config, steps), time.process_time() - begun


def measured(preset: str, steps: int, folder: Path) -> dict[str, Any]:
    """Seconds of every way's steps, in turns."""
    auto, plain = (config_of(preset, matmul) for matmul in ("auto", "default"))
    first, _ = started(auto, steps, folder / "first")
    built = {"kept": started(auto, steps, folder / "first"), "anew": started(auto, steps, folder / "second"),
             "default": started(plain, steps, folder / "first")}
    assert built["kept"][0].compute.routes == first.compute.routes, "what is kept is taken"
    seconds: dict[str, list[float]] = {name: [] for name in built}
    for _ in range(steps):
        for name, (trainer, _) in built.items():
            begun = time.process_time()
            trainer.advance()
            seconds[name].append(time.process_time() - begun)
    found = {}
    for name, (trainer, start) in built.items():
        ratios = [a / b for a, b in zip(seconds[BASE][WARM:], seconds[name][WARM:], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        found[name] = {"seconds of a step": statistics.median(seconds[name][WARM:]), f"times {BASE}": middle,
                       "quartiles": [low, high], "starts": start, "routes": dict(trainer.compute.routes)}
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["transformer", "s4d"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        presets = {each: measured(each, given.steps + WARM, Path(folder) / each) for each in given.presets}
    report = {"processor": processor_name(), "threads": 1, "torch": torch.__version__,
              "date": datetime.date.today().isoformat(), "load": {"before": load, "after": os.getloadavg()[0]},
              "presets": presets}
    print(json.dumps(report, indent=1))
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

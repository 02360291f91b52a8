"""The pause that a checkpoint makes in training: written at once, and in the background (``report.async_save``).

Two trainers of the same run alternate: after every few steps one of them saves. Measured is the time from the last step
before a checkpoint to the next step, and how much longer the steps take while one is being written; both are divided
by the time between two checkpoints. Medians of all turns.

    python benchmarks/checkpoint_pause.py --threads 2
    torchrun --nproc-per-node 2 benchmarks/checkpoint_pause.py --threads 1 --mesh shard=2
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from weft.core.errors import WeftError
from weft.training import Event, Progress, RunConfig, Saved, parse_run, train
from weft.training.parallel import World


def config(arguments: argparse.Namespace, *, background: bool) -> RunConfig:
    """The run: a Llama-like decoder, AdamW, with a checkpoint every ``arguments.every`` steps."""
    layers = [{"kind": "attention", "n_heads": 8, "position": "rope"}, "glu"]
    return parse_run({
        "model": {"kind": "decoder", "d_model": arguments.width, "context": 128, "norm": "rmsnorm",
                  "blocks": [{"repeat": arguments.blocks, "of": [{"kind": "pre", "norm": "rmsnorm",
                                                                 "layers": layers}]}]},
        "training": {"steps": arguments.steps, "batch_size": 8, "compute": {"matmul": "default"},
                     "mesh": arguments.mesh},
        "report": {"log_every": 1, "eval_every": 10**9, "checkpoint_every": arguments.every, "async_save": background,
                   "eval_batches": 1}})


class Clock:
    """When steps and checkpoints came."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []
        self.saved = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Progress):
            self.steps.append((event.step, time.perf_counter()))
        self.saved += isinstance(event, Saved)

    def pauses(self, every: int) -> dict[str, float]:
        """The median of a step without a checkpoint and of one with, and the share of a run that checkpoints take.

        A step's line is printed before its checkpoint is written, so the pause lies in the next step's time; what the
        writing in the background costs lies in the steps after it.
        """
        times = {step: after - before for (_, before), (step, after) in zip(self.steps, self.steps[1:], strict=False)}
        paused = [seconds for step, seconds in times.items() if step % every == 1 and step > every]
        quiet = statistics.median([seconds for step, seconds in times.items() if 1 < step < every])
        spans = [sum(times[step] for step in range(first, first + every)) for first in
                 range(every + 1, max(times) - every + 1, every)]
        share = statistics.median(spans) / (every * quiet) - 1 if spans else float("nan")
        return {"step_seconds": quiet, "pause_seconds": statistics.median(paused) - quiet, "share_of_run": share}


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--mesh", default="", help="such as shard=2,replicate=1")
    arguments = parser.parse_args()
    arguments.mesh = {name: int(size) for name, size in (each.split("=") for each in arguments.mesh.split(",") if each)
                      } or None
    torch.set_num_threads(arguments.threads)
    found: dict[str, list[dict[str, float]]] = {"at once": [], "in the background": []}
    with World.here() as world:
        for turn in range(2 * arguments.turns):
            name = list(found)[turn % 2]
            folder = Path(world.lead(lambda: tempfile.mkdtemp(prefix="checkpoint-pause")))
            clock = Clock()
            try:
                train(config(arguments, background=bool(turn % 2)), folder / "run", on_event=clock, world=world)
            except WeftError as error:
                raise SystemExit(str(error)) from None
            if world.leads:
                found[name].append(clock.pauses(arguments.every))
            world.total(0)  # no rank goes on before all have ended
            if world.leads:
                shutil.rmtree(folder)
    if world.leads:
        print(json.dumps(summary(found, arguments), indent=1))


def summary(found: dict[str, list[dict[str, float]]], arguments: argparse.Namespace) -> dict[str, Any]:
    """Medians over the turns."""
    return {"torch": torch.__version__, "threads": arguments.threads, "every": arguments.every,
            **{name: {figure: statistics.median(turn[figure] for turn in turns) for figure in turns[0]}
               for name, turns in found.items()}}


if __name__ == "__main__":
    main()

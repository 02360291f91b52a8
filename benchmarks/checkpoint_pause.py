"""The pause that a checkpoint makes in training: written at once, and in the background (``report.async_save``).

Runs of both kinds alternate. A checkpoint costs what the steps from its beginning until it stands take longer than
those after it, in seconds of the clock, and in seconds of the process's processors, which other work of the machine
disturbs less; divided by the time from one checkpoint to the next it is a share of the run. Medians of all checkpoints
that another one follows. It takes some four minutes on two cores, and writes
``benchmarks/results/checkpoint_pause.json`` (under torchrun ``checkpoint_pause_N.json``, N the processes).

    python benchmarks/checkpoint_pause.py
    torchrun --nproc-per-node 2 benchmarks/checkpoint_pause.py --threads 1 --mesh shard=2
    python benchmarks/checkpoint_pause.py --width 128 --blocks 2 --steps 41 --every 20 --turns 1 --out /tmp    a trial
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from weft.core.errors import WeftError
from weft.ops.processor import processor_name
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
    """When steps ended, by the clock and by the process's processor time, and after which step a checkpoint stood."""

    def __init__(self) -> None:
        self.steps: dict[int, tuple[float, float]] = {}
        self.stood: dict[int, int] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Progress):
            self.steps[event.step] = time.perf_counter(), time.process_time()
        if isinstance(event, Saved):
            self.stood[event.step] = max(self.steps)

    def pauses(self, every: int) -> list[dict[str, float]]:
        """What each checkpoint costs that another one follows.

        A step's line is printed before its checkpoint is written, so the pause lies in the next step's time; what the
        writing in the background costs lies in the steps until the checkpoint stands.
        """
        return [self._pause(first, self.stood[first] + 1, first + every) for first in sorted(self.stood)
                if first + every in self.stood]

    def _pause(self, first: int, stands: int, following: int) -> dict[str, float]:
        found: dict[str, float] = {"steps_until_it_stands": stands - first}
        for index, name in enumerate(("seconds", "processor_seconds")):
            times = {step: self.steps[step][index] - self.steps[step - 1][index] for step in
                     range(first + 1, following + 1)}
            quiet = statistics.median(times[step] for step in range(stands + 1, following + 1))
            longer = sum(times[step] - quiet for step in range(first + 1, stands + 1))
            found |= {f"step_{name}": quiet, f"pause_{name}": times[first + 1] - quiet, f"checkpoint_{name}": longer,
                      f"share_of_{name}": longer / sum(times.values())}
        return found


def main() -> None:
    """Measure, and write and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--steps", type=int, default=101)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--mesh", default="", help="such as shard=2,replicate=1")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    arguments.mesh = {name: int(size) for name, size in (each.split("=") for each in arguments.mesh.split(",") if each)
                      } or None
    torch.set_num_threads(arguments.threads)
    found: dict[str, list[dict[str, float]]] = {"at once": [], "in the background": []}
    before, size = os.getloadavg()[0], 0
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
                found[name] += clock.pauses(arguments.every)
                last = max((folder / "run" / "checkpoints").iterdir())
                size = sum(file.stat().st_size for file in last.rglob("*") if file.is_file())
            world.total(0)  # no rank goes on before all have ended
            if world.leads:
                shutil.rmtree(folder)
    if world.leads:
        text = json.dumps({**summary(found, arguments, world.size), "checkpoint_bytes": size,
                           "load": {"before": before, "after": os.getloadavg()[0]}}, indent=1)
        of = "" if world.size == 1 else f"_{world.size}"
        (arguments.out / f"checkpoint_pause{of}.json").write_text(text + "\n", encoding="utf-8")
        print(text)


def summary(found: dict[str, list[dict[str, float]]], arguments: argparse.Namespace, processes: int) -> dict[str, Any]:
    """Medians over the checkpoints of all turns.

    Raises:
        SystemExit: no checkpoint was followed by another.
    """
    if not all(found.values()):
        raise SystemExit("no checkpoint was followed by another. Give --steps of more than twice --every.")
    return {"torch": torch.__version__, "processor": processor_name(), "date": datetime.date.today().isoformat(),
            "processes": processes, "mesh": arguments.mesh, "threads": arguments.threads, "width": arguments.width,
            "blocks": arguments.blocks, "every": arguments.every, "wanted": {"share_of_seconds": 0.02},
            **{name: {"checkpoints": len(each), **{figure: statistics.median(one[figure] for one in each)
                                                   for figure in each[0]}} for name, each in found.items()}}


if __name__ == "__main__":
    main()

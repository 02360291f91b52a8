"""What data parallelism costs: two processes of one thread against one process of two threads, with the same batches.

A round starts both, one after the other, as they are started by hand: `torchrun --nproc-per-node 2` and `python`. Each
trains the same model on the same global batch; a first step is not counted. Printed are the medians over rounds of the
median step, in seconds of the clock and of the processors of all ranks, which other work of the machine disturbs less,
and their ratios. The losses of both must agree. It takes some three minutes on two cores, and writes
``benchmarks/results/data_parallel.json``.

    python benchmarks/data_parallel.py
    python benchmarks/data_parallel.py --width 64 --blocks 2 --steps 6 --rounds 1 --out /tmp        a trial
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from weft.ops.processor import processor_name
from weft.training import Event, Progress, RunConfig, parse_run, train
from weft.training.parallel import World

WAYS = {"one process, two threads": [sys.executable],
        "two processes": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]}
CLOSE = 1e-3
"""Of the losses after the last step, relative: float32 sums in two orders."""


def config(arguments: argparse.Namespace) -> RunConfig:
    """The run: a Llama-like decoder and AdamW."""
    layers = [{"kind": "attention", "n_heads": 8, "position": "rope"}, "glu"]
    block = {"kind": "pre", "norm": "rmsnorm", "layers": layers}
    return parse_run({
        "model": {"kind": "decoder", "d_model": arguments.width, "context": 128, "norm": "rmsnorm",
                  "blocks": [{"repeat": arguments.blocks, "of": [block]}]},
        "data": {"max_bytes": 1_000_000},
        "training": {"steps": arguments.steps, "batch_size": arguments.batch, "compute": {"matmul": "default"}},
        "report": {"log_every": 1, "eval_every": 10**9, "checkpoint_every": 10**9, "eval_batches": 1}})


class Clock:
    """When steps ended, by the clock and by this process's processor time, and their losses."""

    def __init__(self) -> None:
        self.at: list[tuple[float, float]] = []
        self.loss = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Progress):
            self.at.append((time.perf_counter(), time.process_time()))
            self.loss = event.loss

    def medians(self) -> tuple[float, float]:
        """Of a step, without the first."""
        steps = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(self.at[1:], self.at[2:], strict=False)]
        return statistics.median(each[0] for each in steps), statistics.median(each[1] for each in steps)


def child(arguments: argparse.Namespace) -> None:
    """Train in this process, or as one of two, and write what the first rank saw."""
    torch.set_num_threads(2 if "WORLD_SIZE" not in os.environ else 1)
    clock = Clock()
    with World.here() as world, tempfile.TemporaryDirectory() as folder:
        train(config(arguments), Path(world.lead(lambda: folder)) / "run", on_event=clock, world=world)
        seconds, processor = clock.medians() if world.leads else (0.0, 0.0)
        world.total(0)  # no rank removes its folder before all have ended
        if world.leads:
            arguments.child.write_text(json.dumps({"seconds": seconds, "processor_seconds": processor * world.size,
                                                   "loss": clock.loss}), encoding="utf-8")


def measured(way: str, arguments: argparse.Namespace) -> dict[str, float]:
    """One run in a way, in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        sizes = [f"--{name}={getattr(arguments, name)}" for name in ("width", "blocks", "steps", "batch")]
        run = subprocess.run([*WAYS[way], str(Path(__file__).resolve()), *sizes, "--child", str(out)],
                             capture_output=True, text=True, check=False)
        if run.returncode:
            raise SystemExit(f"{way}: exit code {run.returncode}\n{run.stderr[-2000:]}")
        found: dict[str, float] = json.loads(out.read_text(encoding="utf-8"))
        return found


def summary(found: dict[str, list[dict[str, float]]], arguments: argparse.Namespace, before: float) -> dict[str, Any]:
    """Medians over the rounds, and two processes over one; ``before``: the load of the machine.

    Raises:
        SystemExit: their losses differ.
    """
    middle = {way: {key: statistics.median(each[key] for each in runs) for key in runs[0]}
              for way, runs in found.items()}
    one, two = (middle[way] for way in WAYS)
    if abs(one["loss"] - two["loss"]) > CLOSE * abs(one["loss"]):
        raise SystemExit(f"the losses differ: {one['loss']} of one process and {two['loss']} of two. They should be of "
                         "the same batches.")
    return {"torch": torch.__version__, "processor": processor_name(), "date": datetime.date.today().isoformat(),
            "rounds": arguments.rounds, "batch": arguments.batch, "width": arguments.width, "blocks": arguments.blocks,
            "load": {"before": before, "after": os.getloadavg()[0]}, **middle,
            "ratio": two["seconds"] / one["seconds"],
            "processor_ratio": two["processor_seconds"] / one["processor_seconds"]}


def main() -> None:
    """Measure, and write and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments)
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    before = os.getloadavg()[0]
    for _ in range(arguments.rounds):
        for way, runs in found.items():
            runs.append(measured(way, arguments))
    text = json.dumps(summary(found, arguments, before), indent=1)
    (arguments.out / "data_parallel.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()

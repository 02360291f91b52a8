"""Windows and learned biases of attention against plain causal attention: one layer, forward and backward.

    python benchmarks/attention.py [--rounds 9] [--threads N]      # on an idle machine; some minutes

Every case is a layer with its projections, in float32. Times are medians of rounds in which the cases of a group are
run in turns, in one process, by the clock and in seconds that the processor spent, which other work on the machine
changes little where there is one thread. Peak memory is that of a process of its own, beyond what it held before the
call. What is compared with what, and the bound that is wanted, stands in `GROUPS`. Writes ``results/attention.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.core.config import parse_part
from weft.core.part_config import Dims
from weft.ops.processor import processor_name

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "attention.json"


class Group(NamedTuple):
    """Cases that are compared with the first of them.

    Attributes:
        steps, width, heads, rows: tokens of a row, d_model, heads, batch.
        cases: fields of the layer, by name.
        wanted: bounds on time and memory, relative to the first case's, by case.
    """

    steps: int
    width: int
    heads: int
    rows: int
    cases: dict[str, dict[str, Any]]
    wanted: dict[str, dict[str, float]]


WINDOWS: dict[str, dict[str, Any]] = {
    "causal": {}, "window 128": {"mask": "causal & window(128)"},
    "window 128, dense": {"mask": "causal & window(128)", "backend": "sdpa"},
    "window 128 and 4 first": {"mask": "causal & (window(128) | global(0, 1, 2, 3))"}}
BOUND = {"window 128": {"time": 1.0, "memory": 2.0}}
GROUPS = {
    "narrow windows": Group(8192, 64, 4, 1, WINDOWS, BOUND),
    "biases": Group(1024, 512, 8, 4, {"none": {}, "t5": {"position": "t5"}, "alibi": {"position": "alibi"},
                                      "t5, dense": {"position": "t5", "backend": "reference"}},
                    {"t5": {"time": 1.5}}),
    "windows": Group(8192, 512, 8, 1, WINDOWS, BOUND)}


def layer_of(group: Group, fields: dict[str, Any]) -> nn.Module:
    """The layer of a case, in training."""
    torch.manual_seed(0)
    config = parse_part(("mixer",), {"kind": "attention", "n_heads": group.heads, **fields})
    built: nn.Module = config.build(Dims(group.width)).train()
    return built


def step(layer: nn.Module, x: Tensor) -> None:
    """Forward and backward."""
    layer.zero_grad()
    x.grad = None
    layer(x).y.sum().backward()


def times(group: Group, rounds: int) -> dict[str, tuple[float, float]]:
    """Of each case its seconds, and those that the processor spent on it, medians of rounds in turns."""
    x = torch.randn(group.rows, group.steps, group.width, requires_grad=True)
    layers = {name: layer_of(group, fields) for name, fields in group.cases.items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in layers}
    for turn in range(rounds + 1):
        for name, layer in layers.items():
            begun, used = time.perf_counter(), time.process_time()
            step(layer, x)
            if turn:  # the first is not counted
                taken[name].append((time.perf_counter() - begun, time.process_time() - used))
    return {name: (statistics.median(wall for wall, _ in pairs), statistics.median(own for _, own in pairs))
            for name, pairs in taken.items()}


def peak(group: Group, case: str) -> int:
    """Bytes beyond what the process held before the step."""
    layer = layer_of(group, group.cases[case])
    step(layer, torch.randn(1, 300, group.width, requires_grad=True))
    x = torch.randn(group.rows, group.steps, group.width, requires_grad=True)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, see proc(5)
    before = held("VmHWM")
    step(layer, x)
    return held("VmHWM") - before


def held(field: str) -> int:
    """Bytes that Linux says this process holds, by the name of the line."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024


def peak_apart(name: str, case: str, threads: int) -> int:
    """`peak` in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--peak", name, case, "--threads", str(threads)],
                          check=True, capture_output=True, text=True)
    return int(done.stdout)


def measured(name: str, group: Group, rounds: int, threads: int) -> dict[str, Any]:
    """A group's figures, each also relative to the first case's."""
    seconds = times(group, rounds)
    memory = {case: peak_apart(name, case, threads) for case in group.cases}
    first = next(iter(group.cases))
    return {"shape": {field: getattr(group, field) for field in ("steps", "width", "heads", "rows")},
            "wanted": group.wanted,
            "cases": {case: {"seconds": seconds[case][0], "time": seconds[case][0] / seconds[first][0],
                             "processor seconds": seconds[case][1],
                             "processor time": seconds[case][1] / seconds[first][1],
                             "MiB": memory[case] / 2**20, "memory": memory[case] / memory[first]}
                      for case in group.cases}}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--note", default="", help="written into the results")
    parser.add_argument("--only", nargs="+", choices=GROUPS, help="groups to measure")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.peak is not None:
        print(peak(GROUPS[given.peak[0]], given.peak[1]))
        return
    load = os.getloadavg()[0]
    found = {}
    for name in given.only or GROUPS:
        found[name] = measured(name, GROUPS[name], given.rounds, given.threads)
        print(name, json.dumps(found[name]["cases"], indent=1), flush=True)
    report = {"processor": processor_name(), "threads": given.threads, "torch": torch.__version__,
              "python": platform.python_version(), "date": datetime.date.today().isoformat(),
              "load": {"before": load, "after": os.getloadavg()[0]}, "note": given.note, "groups": found}
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The forms of attention in long rows with a window, and in short rows: the operation alone, forward and backward.

    python benchmarks/windows.py [--rounds 5] [--threads 2]      # on an idle machine; two minutes

One row of eight heads of 64 features in float32. ``dense`` is causal attention by PyTorch's fused kernel, ``banded``
and ``native`` are the forms of Weft for a window. At 16,384 tokens the three are run in turns, and ratios are medians
over the turns; then each window alone at half, once and twice as many. Peak memory is that of a process of its own,
beyond what it held before the call. Last come eight causal rows of 512 tokens, with as many key heads and with two, by
the fused kernel and in C. What is wanted stands in `WANTED`. Writes ``results/windows.json``.
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
from typing import Any

import torch
from attention import held

from weft.core.clock import Keys
from weft.core.span import WHOLE
from weft.masks import Causal, Window
from weft.masks.visible import MaskFacts, visible
from weft.ops.attention import ATTENTION, AttentionCall
from weft.ops.native.library import describe
from weft.ops.processor import processor_name

RESULTS = Path(__file__).parent / "results" / "windows.json"
STEPS, WINDOW, HEADS, SIZE = 16384, 512, 8, 64
FORMS = {"dense": "sdpa", "banded": "banded", "native": "native"}
WANTED = {"banded": {"faster": 5.0, "memory": 3.0}, "native": {"faster": 8.0, "memory": 1.5}}
"""At least so many times as fast as dense, and at most so many times its memory."""


def call_of(name: str, steps: int) -> AttentionCall:
    """Queries, keys and values with gradients, and the keys that a case attends to."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, steps, HEADS, SIZE, requires_grad=True) for _ in range(3))
    span = WHOLE.resolve(None, q)
    rule = MaskFacts.of(Causal() if name == "dense" else Window(WINDOW), HEADS)
    return AttentionCall(q, k, v, SIZE**-0.5, visible(rule, Keys.of(span.ticks), span))


def step(name: str, call: AttentionCall) -> float:
    """Seconds of forward and backward."""
    leaves = (call.q, call.k, call.v)
    begun = time.perf_counter()
    y = ATTENTION(call, FORMS[name])
    torch.autograd.grad(y, leaves, torch.ones_like(y))
    return time.perf_counter() - begun


def together(rounds: int) -> dict[str, Any]:
    """Every case at `STEPS` tokens, in turns."""
    calls = {name: call_of(name, STEPS) for name in FORMS}
    for name in FORMS:
        step(name, call_of(name, 1024))
    taken = {name: list[float]() for name in FORMS}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(step(name, call))
    memory = {name: peak_apart(name, STEPS) for name in FORMS}
    return {name: {"seconds": statistics.median(taken[name]), "faster": statistics.median(
        dense / own for dense, own in zip(taken["dense"], taken[name], strict=True)),
        "MiB": memory[name] / 2**20, "memory": memory[name] / memory["dense"]} for name in FORMS}


def growing(name: str, rounds: int) -> dict[str, Any]:
    """Seconds and memory of a window by the tokens of a row."""
    found = {}
    for steps in (STEPS // 2, STEPS, STEPS * 2):
        call = call_of(name, steps)
        step(name, call)
        found[str(steps)] = {"seconds": statistics.median(step(name, call) for _ in range(rounds)),
                             "MiB": peak_apart(name, steps) / 2**20}
    return found


def short_rows(groups: int, rounds: int) -> dict[str, float]:
    """Eight causal rows of 512 tokens, by the fused kernel and in C, in turns."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(8, 512, heads, SIZE, requires_grad=True) for heads in (HEADS, groups, groups))
    span = WHOLE.resolve(None, q)
    call = AttentionCall(q, k, v, SIZE**-0.5, visible(MaskFacts.of(Causal(), HEADS), Keys.of(span.ticks), span))
    pairs = [(step("dense", call), step("native", call)) for _ in range(4 * rounds + 1)][1:]
    return {"dense seconds": statistics.median(dense for dense, _ in pairs),
            "native seconds": statistics.median(own for _, own in pairs),
            "faster": statistics.median(dense / own for dense, own in pairs)}


def peak(name: str, steps: int) -> int:
    """Bytes beyond what the process held before the call."""
    step(name, call_of(name, 1024))
    call = call_of(name, steps)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, see proc(5)
    before = held("VmHWM")
    step(name, call)
    return held("VmHWM") - before


def peak_apart(name: str, steps: int) -> int:
    """`peak` in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--peak", name, str(steps), "--threads",
                           str(torch.get_num_threads())], check=True, capture_output=True, text=True)
    return int(done.stdout)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--note", default="", help="written into the results")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.peak is not None:
        print(peak(given.peak[0], int(given.peak[1])))
        return
    load = os.getloadavg()[0]
    cases, doubling = together(given.rounds), {name: growing(name, given.rounds) for name in WANTED}
    report = {"processor": processor_name(), "threads": given.threads, "torch": torch.__version__,
              "native code": describe().split(",")[0], "python": platform.python_version(),
              "date": datetime.date.today().isoformat(), "load": {"before": load, "after": os.getloadavg()[0]},
              "note": given.note, "shape": {"steps": STEPS, "window": WINDOW, "heads": HEADS, "size": SIZE},
              "wanted": WANTED, "cases": cases, "by tokens": doubling,
              "rows of 512, by key heads": {str(groups): short_rows(groups, given.rounds) for groups in (HEADS, 2)}}
    print(json.dumps(report, indent=1))
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

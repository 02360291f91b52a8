"""Time and memory against the length of the row, in the ways of `ways.py`: four curves.

    python recipes/scan_costs/run.py                  # on an idle machine; some minutes
    python recipes/scan_costs/run.py --draw           # the table and the pictures of the record anew

Seconds are those that the processor spent, the least of some rounds in which the ways take turns, by one thread. Peak
memory is that of a process of its own, beyond what it held before the call. Writes result.json, its pictures and the
table of README.md.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from ways import CHANNELS, HEADS, STATE, WAYS

from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.ops.processor import processor_name

FOLDER = Path(__file__).parent
ROUNDS = 3
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
MEASURES = {"forward": "seconds, forward", "both": "seconds, forward and backward", "peak": "MiB at the peak"}


def settings_sha256() -> str:
    """Of what is measured."""
    text = (FOLDER / "ways.py").read_text("utf-8") + repr((ROUNDS, LENGTHS))
    return hashlib.sha256(text.encode()).hexdigest()


def inputs(steps: int) -> Tensor:
    """One row of tokens [1,T,H]."""
    return torch.randn(1, steps, CHANNELS, generator=torch.Generator().manual_seed(0)).requires_grad_()


def seconds(way: str, steps: int) -> tuple[float, float]:
    """Of the processor: forward, and forward and backward."""
    x = inputs(steps)
    begun = time.process_time()
    y = WAYS[way](x)
    forward = time.process_time() - begun
    y.sum().backward()
    return forward, time.process_time() - begun


def peak(way: str, steps: int) -> int:
    """Bytes beyond what the process held before, forward and backward."""
    seconds(way, LENGTHS[0])
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, see proc(5)
    before = held()
    seconds(way, steps)
    return held() - before


def held() -> int:
    """The most bytes that Linux says this process has held."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) * 1024


def peak_apart(way: str, steps: int) -> int:
    """`peak` in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--peak", way, str(steps)], check=True, capture_output=True,
                          text=True)
    return int(done.stdout)


def measured(lengths: Sequence[int] = LENGTHS, rounds: int = ROUNDS) -> dict[str, dict[str, dict[str, float]]]:
    """Every way at every length."""
    taken: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for steps in track(lengths, "Lengths"):
        for _ in range(rounds + 1):  # the first warms up
            for way in WAYS:
                taken.setdefault((way, steps), []).append(seconds(way, steps))
    return {way: {str(steps): {"forward": min(each for each, _ in taken[way, steps][1:]),
                               "both": min(each for _, each in taken[way, steps][1:]), "peak": peak_apart(way, steps)}
                  for steps in lengths} for way in WAYS}


def record(costs: dict[str, dict[str, dict[str, float]]]) -> dict[str, Any]:
    """The figures, and what they were measured on."""
    return {"settings_sha256": settings_sha256(), "date": datetime.date.today().isoformat(),
            "processor": processor_name(), "torch": torch.__version__, "load": round(os.getloadavg()[0], 1),
            "costs": costs}


def growth(costs: dict[str, dict[str, float]], measure: str) -> float:
    """The exponent with which a cost grows over the last doubling of the length."""
    before, last = list(costs.values())[-2:]
    return math.log2(max(last[measure], 1e-9) / max(before[measure], 1e-9))


def table(found: dict[str, Any]) -> str:
    """The table of README.md."""
    lengths = list(next(iter(found["costs"].values())))
    lines = ["| | " + " | ".join(f"T = {int(steps):,}" for steps in lengths) + " | grows with |",
             "| --- |" + " ---: |" * (len(lengths) + 1)]
    for measure, words in MEASURES.items():
        for way, costs in found["costs"].items():
            values = [_in_unit(cost[measure], measure) for cost in costs.values()]
            shown = [f"{value:,.1f}" if measure == "peak" else f"{value:.4f}" for value in values]
            lines.append(f"| {way}: {words} | {' | '.join(shown)} | T^{growth(costs, measure):.1f} |")
    return "\n".join([*lines, "", f"One row, {CHANNELS} channels, {STATE} numbers of state in each, {HEADS} heads, "
                      f"float32, one thread; {found['date']}, {found['processor']}, torch {found['torch']}, load "
                      f"before: {found['load']}."])


def pictures(found: dict[str, Any]) -> list[Figure]:
    """A chart for each measure, both axes logarithmic."""
    return [chart(f"costs-{measure}", words[0].upper() + words[1:],
                  f"{words} against the length of the row, for {', '.join(WAYS)}.",
                  [Curve(way, [(int(steps), _in_unit(cost[measure], measure)) for steps, cost in costs.items()], index)
                   for index, (way, costs) in enumerate(found["costs"].items())],
                  "tokens of the row", words, scale="logarithmic", lengths=True, width=480, height=280, letters=18)
            for measure, words in MEASURES.items()]


def _in_unit(cost: float, measure: str) -> float:
    return cost / 2**20 if measure == "peak" else cost


def written(found: dict[str, Any], folder: Path = FOLDER) -> None:
    """The page and the pictures of a record."""
    text = re.sub(r"(?s)<!-- table -->.*<!-- /table -->", lambda _: f"<!-- table -->\n{table(found)}\n<!-- /table -->",
                  (FOLDER / "README.md").read_text("utf-8"))
    (folder / "README.md").write_text(text, encoding="utf-8")
    for figure in pictures(found):
        (folder / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="only write the table and the pictures of result.json")
    parser.add_argument("--peak", nargs=2, metavar=("WAY", "T"), help="print one peak; used by the recipe itself")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.peak:
        print(peak(given.peak[0], int(given.peak[1])))
        return
    path = FOLDER / "result.json"
    if not given.draw:
        path.write_text(json.dumps(record(measured()), indent=1) + "\n", encoding="utf-8")
    written(json.loads(path.read_text("utf-8")))


if __name__ == "__main__":
    main()

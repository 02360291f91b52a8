"""Time and memory of a window's attention against the length of the row, in the ways of `windows.py`.

    python recipes/windows/run.py                  # on an idle machine; some minutes
    python recipes/windows/run.py --draw           # the table and the picture of the record anew

Seconds are those that the processor spent, the least of some rounds in which the ways take turns, by one thread; other
work on the machine changes them less than the time on the clock. Peak memory is that of a process of its own, beyond
what it held before the call. Writes result.json, windows.svg and the table of README.md.
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
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from windows import WAYS

from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.ops.forms import OPERATIONS
from weft.ops.processor import processor_name

FOLDER = Path(__file__).parent
WINDOW, HEADS, SIZE, ROUNDS = 256, 2, 32, 3
LENGTHS = (512, 1024, 2048, 4096, 8192)
MEASURES = {"forward": "seconds, forward", "both": "seconds, forward and backward", "peak": "MiB at the peak"}


class Cost(NamedTuple):
    """Of one way at one length: seconds of the processor, and bytes."""

    forward: float
    both: float
    peak: int


def settings_sha256() -> str:
    """Of what is measured."""
    text = (FOLDER / "windows.py").read_text("utf-8") + repr((WINDOW, HEADS, SIZE, ROUNDS, LENGTHS))
    return hashlib.sha256(text.encode()).hexdigest()


def inputs(steps: int) -> list[Tensor]:
    """Queries, keys and values."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, steps, HEADS, SIZE, generator=generator, requires_grad=True) for _ in range(3)]


def seconds(way: str, steps: int) -> tuple[float, float]:
    """Of the processor: forward, and forward and backward."""
    q, k, v = inputs(steps)
    begun = time.process_time()
    y = WAYS[way](q, k, v, WINDOW)
    forward = time.process_time() - begun
    y.sum().backward()
    return forward, time.process_time() - begun


def peak(way: str, steps: int) -> int:
    """Bytes beyond what the process held before, forward and backward."""
    seconds(way, 300)
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


def measured() -> dict[str, dict[str, Cost]]:
    """Every way at every length."""
    taken: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for steps in LENGTHS:
        for _ in range(ROUNDS + 1):  # the first warms up
            for way in WAYS:
                taken.setdefault((way, steps), []).append(seconds(way, steps))
    return {way: {str(steps): Cost(min(each for each, _ in taken[way, steps][1:]),
                                   min(each for _, each in taken[way, steps][1:]), peak_apart(way, steps))
                  for steps in LENGTHS} for way in WAYS}


def record(found: dict[str, dict[str, Cost]]) -> dict[str, Any]:
    """The figures, and what they were measured on."""
    return {"settings_sha256": settings_sha256(), "date": datetime.date.today().isoformat(),
            "processor": processor_name(), "torch": torch.__version__, "load": round(os.getloadavg()[0], 1),
            "form": chosen(),
            "costs": {way: {steps: cost._asdict() for steps, cost in costs.items()} for way, costs in found.items()}}


def chosen() -> str:
    """The form that the fast way takes for the longest row."""
    with OPERATIONS.observed() as seen:
        WAYS["fast"](*inputs(LENGTHS[-1]), WINDOW)
    return seen[0].form


def growth(costs: dict[str, dict[str, float]], measure: str) -> float:
    """The exponent with which a cost grows over the last doubling of the length."""
    last, before = (costs[str(steps)][measure] for steps in (LENGTHS[-1], LENGTHS[-2]))
    return math.log2(last / before)


def table(found: dict[str, Any]) -> str:
    """The table of README.md."""
    lines = ["| | " + " | ".join(f"T = {steps}" for steps in LENGTHS) + " | grows with |", "| --- |" + " ---: |" * 6]
    for measure, words in MEASURES.items():
        for way, costs in found["costs"].items():
            values = [costs[str(steps)][measure] for steps in LENGTHS]
            shown = [f"{_in_unit(value, measure):,.0f}" if measure == "peak" else f"{value:.3f}" for value in values]
            lines.append(f"| {way}: {words} | {' | '.join(shown)} | T^{growth(costs, measure):.1f} |")
    return "\n".join([*lines, "", f"W = {WINDOW}, {HEADS} heads of {SIZE} features, float32, one thread; "
                      f"{found['date']}, {found['processor']}, torch {found['torch']}, load before: {found['load']}.",
                      f"The fast way is the form `{found['form']}`."])


def pictures(found: dict[str, Any]) -> list[Figure]:
    """A chart for each measure, both axes logarithmic."""
    return [chart(f"windows-{measure}", words[0].upper() + words[1:],
                  f"{words} against the length of the row, for {', '.join(WAYS)}.",
                  [Curve(way, [(steps, _in_unit(costs[str(steps)][measure], measure)) for steps in LENGTHS], index)
                   for index, (way, costs) in enumerate(found["costs"].items())],
                  "tokens of the row", words, scale="logarithmic", lengths=True, width=480, height=280, letters=18)
            for measure, words in MEASURES.items()]


def _in_unit(cost: float, measure: str) -> float:
    return cost / 2**20 if measure == "peak" else cost


def written(found: dict[str, Any]) -> None:
    """The page and the picture of a record."""
    page = FOLDER / "README.md"
    text = re.sub(r"(?s)<!-- table -->.*<!-- /table -->", lambda _: f"<!-- table -->\n{table(found)}\n<!-- /table -->",
                  page.read_text("utf-8"))
    page.write_text(text, encoding="utf-8")
    for figure in pictures(found):
        (FOLDER / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="only write the table and the picture of result.json")
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

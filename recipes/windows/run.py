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

from weft.drawing.axes import Axis, logarithmic, powers_of_two
from weft.drawing.marks import line
from weft.drawing.markup import Markup, join, tag
from weft.drawing.palette import LIGHT, MODELS_LIGHT
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
            "costs": {way: {steps: cost._asdict() for steps, cost in costs.items()} for way, costs in found.items()}}


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
            shown = [f"{value / 2**20:,.0f}" if measure == "peak" else f"{value:.3f}" for value in values]
            lines.append(f"| {way}: {words} | {' | '.join(shown)} | T^{growth(costs, measure):.1f} |")
    return "\n".join([*lines, "", f"W = {WINDOW}, {HEADS} heads of {SIZE} features, float32, one thread; "
                      f"{found['date']}, {found['processor']}, torch {found['torch']}, load before: {found['load']}."])


def picture(found: dict[str, Any]) -> str:
    """A panel for each measure, both axes logarithmic."""
    panels = [_panel(found["costs"], measure, words, 10 + index * 330)
              for index, (measure, words) in enumerate(MEASURES.items())]
    names = join([tag("text", {"x": 60 + index * 200, "y": 296, "fill": MODELS_LIGHT[index]}, way)
                  for index, way in enumerate(WAYS)])
    return str(tag("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": "0 0 1000 306", "role": "img",
                           "font-family": "sans-serif", "font-size": "12"},
                   tag("title", None, f"Attention to the last {WINDOW} tokens: cost against the length of the row"),
                   tag("rect", {"width": 1000, "height": 306, "fill": LIGHT["paper"]}), join(panels), names)) + "\n"


def _panel(costs: dict[str, Any], measure: str, words: str, left: float) -> Markup:
    scale = 2**20 if measure == "peak" else 1
    values = [cost[measure] / scale for way in costs.values() for cost in way.values()]
    x = powers_of_two(LENGTHS, left + 40, left + 310, str)
    y = logarithmic(values, 250, 30, lambda value: f"{value:g}")
    assert x is not None and y is not None, "costs are positive"
    lines = [line([(x.place(steps), y.place(way[str(steps)][measure] / scale)) for steps in LENGTHS],
                  {"stroke": MODELS_LIGHT[index], "stroke-width": 2}) for index, way in enumerate(costs.values())]
    return join(tag("text", {"x": left + 40, "y": 18, "fill": LIGHT["ink"]}, words), _grid(x, y), join(lines))


def _grid(x: Axis, y: Axis) -> Markup:
    quiet = {"fill": LIGHT["quiet"], "font-size": 10}
    across = [join(tag("line", {"x1": x.start, "x2": x.end, "y1": y.place(tick), "y2": y.place(tick),
                                "stroke": LIGHT["hairline"]}),
                   tag("text", {"x": x.start - 4, "y": y.place(tick) + 3, "text-anchor": "end", **quiet},
                       y.write(tick))) for tick in y.ticks]
    return join(join(across), join([tag("text", {"x": x.place(tick), "y": 266, "text-anchor": "middle", **quiet},
                                        f"{tick:g}") for tick in x.ticks]))


def written(found: dict[str, Any]) -> None:
    """The page and the picture of a record."""
    page = FOLDER / "README.md"
    text = re.sub(r"(?s)<!-- table -->.*<!-- /table -->", lambda _: f"<!-- table -->\n{table(found)}\n<!-- /table -->",
                  page.read_text("utf-8"))
    page.write_text(text, encoding="utf-8")
    (FOLDER / "windows.svg").write_text(picture(found), encoding="utf-8")


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

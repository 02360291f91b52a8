"""Time and memory of a window's attention against the length of the row, in the ways of `windows.py`.

    python recipes/windows/run.py                  # on an idle machine; some minutes
    python recipes/windows/run.py --draw           # the table and the picture of the record anew
    python recipes/windows/run.py --lengths 4096 8192 16384 --window 512 --heads 8 --out larger

Seconds are those that the processor spent, the least of some rounds in which the ways take turns, by one thread; other
work on the machine changes them less than the time on the clock. Peak memory is that of a process of its own, beyond
what it held before the call. Writes result.json, the pictures and the table of README.md. What is measured at another
size than the recorded one is written to the folder of `--out`, or with `--record` in place of the recorded result.
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
from rich.progress import track
from torch import Tensor
from windows import WAYS

from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.ops.forms import OPERATIONS
from weft.ops.processor import processor_name

FOLDER = Path(__file__).parent
MEASURES = {"forward": "seconds, forward", "both": "seconds, forward and backward", "peak": "MiB at the peak"}


class Size(NamedTuple):
    """What is measured; the defaults are the recorded size.

    Attributes:
        features: of a head.
        lengths: of the rows, each twice the one before for the exponents of the table.
    """

    window: int = 256
    heads: int = 2
    features: int = 32
    rounds: int = 3
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)


RECORDED = Size()


class Cost(NamedTuple):
    """Of one way at one length: seconds of the processor, and bytes."""

    forward: float
    both: float
    peak: int


def settings_sha256(size: Size = RECORDED) -> str:
    """Of what is measured."""
    text = (FOLDER / "windows.py").read_text("utf-8") + repr(tuple(size))
    return hashlib.sha256(text.encode()).hexdigest()


def inputs(steps: int, size: Size = RECORDED) -> list[Tensor]:
    """Queries, keys and values."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, steps, size.heads, size.features, generator=generator, requires_grad=True)
            for _ in range(3)]


def seconds(way: str, steps: int, size: Size) -> tuple[float, float]:
    """Of the processor: forward, and forward and backward."""
    q, k, v = inputs(steps, size)
    begun = time.process_time()
    y = WAYS[way](q, k, v, size.window)
    forward = time.process_time() - begun
    y.sum().backward()
    return forward, time.process_time() - begun


def peak(way: str, steps: int, size: Size) -> int:
    """Bytes beyond what the process held before, forward and backward."""
    seconds(way, 300, size)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, see proc(5)
    before = held()
    seconds(way, steps, size)
    return held() - before


def held() -> int:
    """The most bytes that Linux says this process has held."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) * 1024


def peak_apart(way: str, steps: int, size: Size) -> int:
    """`peak` in a process of its own."""
    chosen = ["--window", str(size.window), "--heads", str(size.heads), "--size", str(size.features)]
    done = subprocess.run([sys.executable, __file__, "--peak", way, str(steps), *chosen], check=True,
                          capture_output=True, text=True)
    return int(done.stdout)


def measured(size: Size) -> dict[str, dict[str, Cost]]:
    """Every way at every length."""
    taken: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for steps in track(size.lengths, "Lengths"):
        for _ in range(size.rounds + 1):  # the first warms up
            for way in WAYS:
                taken.setdefault((way, steps), []).append(seconds(way, steps, size))
    return {way: {str(steps): Cost(min(each for each, _ in taken[way, steps][1:]),
                                   min(each for _, each in taken[way, steps][1:]),
                                   peak_apart(way, steps, size))
                  for steps in size.lengths} for way in WAYS}


def record(found: dict[str, dict[str, Cost]], size: Size) -> dict[str, Any]:
    """The figures, and what they were measured on."""
    return {"size": size._asdict(), "settings_sha256": settings_sha256(size), "date": datetime.date.today().isoformat(),
            "processor": processor_name(), "torch": torch.__version__, "load": round(os.getloadavg()[0], 1),
            "form": chosen(size),
            "costs": {way: {steps: cost._asdict() for steps, cost in costs.items()} for way, costs in found.items()}}


def chosen(size: Size) -> str:
    """The form that the fast way takes for the longest row."""
    with OPERATIONS.observed() as seen:
        WAYS["fast"](*inputs(size.lengths[-1], size), size.window)
    return seen[0].form


def growth(costs: dict[str, dict[str, float]], measure: str) -> float:
    """The exponent with which a cost grows from the last length but one to the last; NaN where one is nothing, as the
    memory of rows that fit into what the process holds anyway."""
    before, last = sorted(map(int, costs))[-2:]
    if not costs[str(last)][measure] * costs[str(before)][measure]:
        return math.nan
    return math.log(costs[str(last)][measure] / costs[str(before)][measure]) / math.log(last / before)


def table(found: dict[str, Any]) -> str:
    """The table of README.md."""
    size = Size(**found["size"])
    lines = ["| | " + " | ".join(f"T = {steps}" for steps in size.lengths) + " | grows with |",
             "| --- |" + " ---: |" * (len(size.lengths) + 1)]
    for measure, words in MEASURES.items():
        for way, costs in found["costs"].items():
            values = [costs[str(steps)][measure] for steps in size.lengths]
            shown = [f"{_in_unit(value, measure):,.0f}" if measure == "peak" else f"{value:.3f}" for value in values]
            power = growth(costs, measure)
            lines.append(f"| {way}: {words} | {' | '.join(shown)} | {'-' if math.isnan(power) else f'T^{power:.1f}'} |")
    return "\n".join([*lines, "", f"W = {size.window}, {size.heads} heads of {size.features} features, float32, one "
                      f"thread; {found['date']}, {found['processor']}, torch {found['torch']}, load before: "
                      f"{found['load']}.",
                      f"The fast way is the form `{found['form']}`."])


def pictures(found: dict[str, Any]) -> list[Figure]:
    """A chart for each measure, both axes logarithmic."""
    return [chart(f"windows-{measure}", words[0].upper() + words[1:],
                  f"{words} against the length of the row, for {', '.join(WAYS)}.",
                  [Curve(way, [(int(steps), _in_unit(cost[measure], measure)) for steps, cost in costs.items()
                               if cost[measure]], index) for index, (way, costs) in enumerate(found["costs"].items())],
                  "tokens of the row", words, scale="logarithmic", lengths=True, width=480, height=280, letters=18)
            for measure, words in MEASURES.items()]


def _in_unit(cost: float, measure: str) -> float:
    return cost / 2**20 if measure == "peak" else cost


def written(found: dict[str, Any], folder: Path) -> None:
    """The page and the pictures of a record; in another folder than the recorded one's the page is the table alone."""
    shown = f"<!-- table -->\n{table(found)}\n<!-- /table -->"
    page = folder / "README.md"
    text = re.sub(r"(?s)<!-- table -->.*<!-- /table -->", lambda _: shown, page.read_text("utf-8")) if (
        folder == FOLDER) else f"# A window of attention, four ways\n\n{shown}\n"
    page.write_text(text, encoding="utf-8")
    for figure in pictures(found):
        (folder / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


def asked() -> tuple[argparse.Namespace, Size, Path]:
    """The options, the size that they give, and the folder to write to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="only write the table and the picture of result.json")
    parser.add_argument("--peak", nargs=2, metavar=("WAY", "T"), help="print one peak; used by the recipe itself")
    parser.add_argument("--lengths", type=int, nargs="+", default=RECORDED.lengths, metavar="T", help="at least two")
    parser.add_argument("--window", type=int, default=RECORDED.window)
    parser.add_argument("--heads", type=int, default=RECORDED.heads)
    parser.add_argument("--size", type=int, default=RECORDED.features, help="features of a head")
    parser.add_argument("--rounds", type=int, default=RECORDED.rounds)
    parser.add_argument("--out", type=Path, help="write to this folder")
    parser.add_argument("--record", action="store_true", help="replace the recorded result")
    given = parser.parse_args()
    size = Size(given.window, given.heads, given.size, given.rounds, tuple(sorted(set(given.lengths))))
    if len(size.lengths) < 2 or min(*size[:4], *size.lengths) < 1:
        parser.error("sizes are at least 1, and --lengths gives two or more")
    if size != RECORDED and given.out is None and not (given.record or given.draw or given.peak):
        parser.error("another size than the recorded one: give --out FOLDER, or --record to replace the record")
    return given, size, FOLDER if given.out is None else given.out


def main() -> None:
    """Measure, or draw what was measured."""
    given, size, folder = asked()
    torch.set_num_threads(1)
    if given.peak:
        print(peak(given.peak[0], int(given.peak[1]), size))
        return
    path = folder / "result.json"
    if not given.draw:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record(measured(size), size), indent=1) + "\n", encoding="utf-8")
    written(json.loads(path.read_text("utf-8")), folder)


if __name__ == "__main__":
    main()

"""Renew src/weft/ops/thresholds.json for this processor: where one form of an operation becomes faster than another.

    python benchmarks/thresholds.py            # on an idle machine; a minute

For every threshold two forms are timed in turns on calls of growing size. The threshold is the size up to which taking
the first, and the second beyond it, costs the least over all sizes. The entry of this processor is replaced or added;
those of others stay, and so does the order of forms, which is a decision and not a measurement. Another process that
computes makes threads wait for one another, and the figures worthless: OMP_NUM_THREADS=1 is then the lesser evil.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from weft.core.clock import Keys
from weft.core.span import WHOLE
from weft.masks import Window
from weft.masks.visible import Rule, visible
from weft.ops.attention import AttentionCall
from weft.ops.banded_attention import ROWS
from weft.ops.forms import OPERATIONS
from weft.ops.processor import processor_name
from weft.ops.rms_norm import RMSNormCall
from weft.ops.thresholds import FILE

WINDOW = 128
TURNS, SECONDS = 15, 0.01
"""Turns for each size, and the least time that a form is repeated for in a turn."""


def crossing(operation: str, first: str, second: str, calls: Iterator[tuple[int, Any]]) -> int:
    """The size up to which to take ``first`` in place of ``second``; 0 for none.

    Args:
        operation: by its name, as the forms are.
        calls: sizes and calls, growing.
    """
    one, other = (OPERATIONS.get(operation).form(name).run for name in (first, second))
    best, least, cost = 0, 0.0, 0.0
    for size, call in calls:
        ratio = statistics.median(seconds(one, call) / seconds(other, call) for _ in range(TURNS))
        print(f"{operation}: {first} / {second} at {size}: {ratio:.2f}", flush=True)
        cost += math.log(ratio)
        if cost < least:
            best, least = size, cost
    return best


def seconds(work: Callable[[Any], Any], call: Any, clock: Callable[[], float] = time.perf_counter) -> float:
    """Of ``work(call)``, over as many times as fill `SECONDS`."""
    work(call)
    count, begun = 0, clock()
    while (taken := clock() - begun) < SECONDS:
        work(call)
        count += 1
    return taken / count


def normalised() -> Iterator[tuple[int, RMSNormCall]]:
    """Vectors of 512 numbers, from one of them to 512."""
    for rows in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512):
        yield rows * 512, RMSNormCall(torch.randn(rows, 512), torch.ones(512), 1e-6)


def windowed() -> Iterator[tuple[int, AttentionCall]]:
    """A window of 128 keys in rows that grow from one block's keys to ten times as many."""
    band = WINDOW + ROWS
    for steps in (band, band * 3 // 2, band * 2, band * 5 // 2, band * 3, band * 4, band * 6, band * 10):
        x = torch.randn(1, steps, 4, 64)
        span = WHOLE.resolve(None, x)
        yield steps, AttentionCall(x, x, x, 0.125, visible(Rule.of(Window(WINDOW), 4), Keys.of(span.ticks), span))


def band() -> float:
    """How many times the keys of a block there must be."""
    return round(crossing("attention", "sdpa", "banded", windowed()) / (WINDOW + ROWS), 2)


THRESHOLDS: Mapping[str, Callable[[], float]] = {
    "attention.band": band,
    "rms_norm.few": lambda: crossing("rms_norm", "pair", "sweep", normalised()),
}


def entry() -> dict[str, Any]:
    """This processor's, measured."""
    with torch.no_grad():
        values = {name: measure() for name, measure in THRESHOLDS.items()}
    return {"processor": processor_name(), "threads": torch.get_num_threads(), "torch": torch.__version__,
            "date": datetime.date.today().isoformat(), "values": values}


def renewed(content: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The file's text with another entry: lists and entries in one line each. Thresholds of the processor that were
    not measured now stay as they were."""
    others = [each for each in content["measured"] if each["processor"] != new["processor"]]
    before = next((each["values"] for each in content["measured"] if each not in others), {})
    new = {**new, "values": dict(sorted({**before, **new["values"]}.items()))}
    orders = ",\n".join(f"    {json.dumps(name)}: {json.dumps(forms)}" for name, forms in content["orders"].items())
    entries = ",\n".join(f"    {json.dumps(each)}" for each in [*others, new])
    return (f'{{\n  "script": {json.dumps(content["script"])},\n  "orders": {{\n{orders}\n  }},\n'
            f'  "measured": [\n{entries}\n  ]\n}}\n')


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    content = json.loads(options.file.read_text(encoding="utf-8"))
    options.file.write_text(renewed(content, entry()), encoding="utf-8")


if __name__ == "__main__":
    main()

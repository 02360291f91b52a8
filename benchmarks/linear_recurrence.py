"""The forms of the linear recurrence for shapes of published layers: the operation alone, forward and backward.

    python benchmarks/linear_recurrence.py [--rounds 7] [--threads 2]      # on an idle machine; two minutes

``operator`` is chunks of matrix products in PyTorch, ``native`` is the code in C, and for one token ``step`` is the
plain form. The forms of a shape run in turns, and ratios are medians over the turns. In Mamba-2's shapes all heads
share queries and keys. Writes ``results/linear_recurrence.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from weft.ops.linear_recurrence import LINEAR_RECURRENCE, LinearRecurrenceCall
from weft.ops.native.library import describe
from weft.ops.processor import processor_name

RESULTS = Path(__file__).parent / "results" / "linear_recurrence.json"


class Shape(NamedTuple):
    """Rows, tokens, key heads, states, features of a key and of a value, and of what a decay is a function."""

    rows: int
    steps: int
    keys: int
    states: int
    e: int
    f: int
    decay: str


SHAPES = {
    "mamba-2, 130M": Shape(1, 2048, 1, 24, 128, 64, "token"),
    "mamba-2, four short rows": Shape(4, 512, 1, 24, 128, 64, "token"),
    "retention": Shape(1, 2048, 4, 4, 64, 128, "constant"),
    "gated linear attention": Shape(1, 2048, 4, 4, 64, 128, "feature"),
    "linear attention": Shape(1, 2048, 8, 8, 64, 65, "none"),
    "mamba-2, two tokens": Shape(1, 2, 1, 24, 128, 64, "token"),
    "gated linear attention, long": Shape(1, 16384, 4, 4, 64, 128, "feature"),
}
TOKENS = {"mamba-2, 130M": Shape(1, 1, 1, 24, 128, 64, "token"), "mamba-2, 2.7B": Shape(1, 1, 1, 80, 128, 64, "token"),
          "retention": Shape(1, 1, 4, 4, 64, 128, "constant")}
"""One token without gradients."""


def call_of(shape: Shape, gradients: bool) -> LinearRecurrenceCall:
    """Random tensors; keys of length near 1, decays between exp(-0.3) and 1."""
    torch.manual_seed(0)
    rows, steps, keys, states, e, f, decay = shape
    sizes = {"constant": (1, 1, states, 1), "token": (rows, steps, states, 1), "feature": (rows, steps, states, e)}
    tensors = (torch.randn(rows, steps, keys, e) / e**0.5, torch.randn(rows, steps, keys, e) / e**0.5,
               torch.randn(rows, steps, states, f), -0.3 * torch.rand(sizes[decay]) if decay in sizes else None,
               torch.zeros(rows, states, e, f))
    return LinearRecurrenceCall(*(None if each is None else each.requires_grad_(gradients) for each in tensors))


def seconds(call: LinearRecurrenceCall, form: str, gradients: bool) -> float:
    """Of one pass, or of both."""
    begun = time.perf_counter()
    y, after = LINEAR_RECURRENCE(call, form)
    if gradients:
        leaves = [each for each in call if each is not None]
        torch.autograd.grad((y, after), leaves, (torch.ones_like(y), torch.ones_like(after)))
    return time.perf_counter() - begun


def compared(shape: Shape, forms: tuple[str, str], gradients: bool, rounds: int) -> dict[str, Any]:
    """The first form against the second, in turns."""
    call = call_of(shape, gradients)
    pairs = [tuple(seconds(call, form, gradients) for form in forms) for _ in range(rounds + 1)][1:]
    return {**{f"{form} ms": 1e3 * statistics.median(pair[index] for pair in pairs) for index, form in
               enumerate(forms)}, "faster": statistics.median(other / own for own, other in pairs)}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--note", default="", help="written into the results")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    load, forms = os.getloadavg()[0], ("native", "operator")
    with torch.no_grad():
        forward = {name: compared(shape, forms, False, given.rounds) for name, shape in SHAPES.items()}
        tokens = {name: compared(shape, ("native", "step"), False, 40 * given.rounds) for name, shape in TOKENS.items()}
    training = {name: compared(shape, forms, True, given.rounds) for name, shape in SHAPES.items()}
    report = {"processor": processor_name(), "threads": given.threads, "torch": torch.__version__,
              "native code": describe().split(",")[0], "python": platform.python_version(),
              "date": datetime.date.today().isoformat(), "load": {"before": load, "after": os.getloadavg()[0]},
              "note": given.note, "shapes": {name: shape._asdict() for name, shape in SHAPES.items()},
              "forward": forward, "forward and backward": training, "one token": tokens}
    print(json.dumps(report, indent=1))
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

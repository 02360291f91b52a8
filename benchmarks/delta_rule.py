"""Time of the delta rule's forms, forward and with gradients, in one run by turns.

    python benchmarks/delta_rule.py [--steps 2048] [--rounds 5] [--threads 2]      # on an idle machine; four minutes

Microseconds for a token of one head, the median over rounds, by form, for decays of none, by head, and by feature, and
for several sizes of heads; ``faster`` is the first form's ratio to each other, a median over the turns. The naive form
runs on an eighth of the tokens. Writes ``results/delta_rule.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
from pathlib import Path

import torch

from weft.ops.delta_rule import DELTA_RULE, DeltaRuleCall
from weft.ops.native.library import describe
from weft.ops.processor import processor_name

RESULTS = Path(__file__).parent / "results" / "delta_rule.json"
FORMS = ("native", "operator", "reference")


def call(steps: int, size: int, decays: int | None, gradients: bool) -> DeltaRuleCall:
    """Two rows of eight heads, as of a network."""
    shape = (2, steps, 8, size)
    a = torch.nn.functional.normalize(torch.randn(shape), dim=-1)
    beta = torch.rand(2, steps, 8, 1)
    decay = None if decays is None else -torch.rand(2, steps, 8, decays) / 10
    tensors = (torch.randn(shape), beta * a, torch.randn(shape), a, -beta * a, decay, torch.zeros(2, 8, size, size))
    return DeltaRuleCall(*(None if x is None else x.requires_grad_(gradients) for x in tensors))


def seconds(form: str, given: DeltaRuleCall, gradients: bool) -> float:
    """Of one call, with its gradients where they are asked for."""
    begin = time.perf_counter()
    with torch.set_grad_enabled(gradients):
        y, after = DELTA_RULE(given, form)
        if gradients:
            torch.autograd.grad(y.sum() + after.sum(), [x for x in given if x is not None])
    return time.perf_counter() - begin


def compared(steps: int, size: int, decays: int | None, gradients: bool, rounds: int) -> dict[str, dict[str, float]]:
    """The forms in turns; the first turn warms up."""
    tokens = {form: max(1, steps // 8) if form == "reference" else steps for form in FORMS}
    examples = {form: call(tokens[form], size, decays, gradients) for form in FORMS}
    taken: dict[str, list[float]] = {form: [] for form in FORMS}
    for turn in range(rounds + 1):
        for form in FORMS:
            each = 1e6 * seconds(form, examples[form], gradients) / (16 * tokens[form])
            taken[form] += [each] if turn else []
    return {"microseconds": {form: statistics.median(each) for form, each in taken.items()},
            "faster": {form: statistics.median(a / b for a, b in zip(taken[form], taken[FORMS[0]], strict=True))
                       for form in FORMS[1:]}}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--note", default="", help="written into the results")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    load, cases = os.getloadavg()[0], {}
    for size in (32, 64, 128, 256):
        for decays, named in ((None, "no decays"), (1, "a decay a head"), (size, "a decay a feature")):
            for gradients, way in ((False, "forward"), (True, "forward and backward")):
                name = f"{size} features, {named}, {way}"
                cases[name] = compared(given.steps, size, decays, gradients, given.rounds)
                print(name, json.dumps(cases[name]), flush=True)
    report = {"processor": processor_name(), "threads": given.threads, "torch": torch.__version__,
              "native code": describe().split(",")[0], "date": datetime.date.today().isoformat(),
              "load": {"before": load, "after": os.getloadavg()[0]}, "note": given.note, "steps": given.steps,
              "cases": cases}
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

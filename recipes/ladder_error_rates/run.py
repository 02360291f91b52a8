"""How often what `weft compare --ladder` says is true, on simulated studies whose truth is known.

    python recipes/ladder_error_rates/run.py

Two models follow a law over five budgets from 1e5 to 1e7 tokens, 1.5 + 0.6 (tokens / 1e7)^-0.3 and
1.9 + 0.25 (tokens / 1e7)^-0.38 bits per byte: the second is better up to about six million tokens. Runs add normal
noise. Counted is how often each interval of 95 % contains what is true, how often the turn is told, how often two equal
models are told to turn, and how often a law is refused: of runs that follow it, and of runs that do not (a curve with a
step).
"""

from __future__ import annotations

import json
import math
import platform
from pathlib import Path
from typing import Any

import numpy as np

from weft.comparison.ladder_findings import Runs, crossings, law_of, said_of, speed_ups, turns

HERE = Path(__file__).parent
BUDGETS = tuple(float(each) for each in np.geomspace(1e5, 1e7, 5))
STEEP, FLAT = (1.5, 0.6, 0.3), (1.9, 0.25, 0.38)
STEP = (3.9, 3.1, 3.05, 2.2, 2.15)
INTERVALS = ("floor", "exponent", "told beforehand", "turn", "saving")
STUDIES, COUNTS, DEVIATIONS = 200, (3, 5, 10), (0.01, 0.03)
MARK = "<!-- table -->"


def means(law: tuple[float, float, float]) -> list[float]:
    """Bits per byte of a law at the budgets."""
    floor, scale, exponent = law
    return [floor + scale * (budget / BUDGETS[-1]) ** -exponent for budget in BUDGETS]


def runs(true: list[float] | tuple[float, ...], count: int, deviation: float, generator: np.random.Generator) -> Runs:
    """Runs of a model at the budgets."""
    return [list(mean + deviation * generator.standard_normal(count)) for mean in true]


def reached(true: list[float], level: float) -> float:
    """The budget at which the line through a model's means is at a level."""
    x, place = np.log(BUDGETS), next(index for index, bits in enumerate(true) if bits <= level)
    part = (true[place - 1] - level) / (true[place - 1] - true[place])
    return math.exp(x[place - 1] + part * (x[place] - x[place - 1]))


def simulated(count: int, deviation: float) -> dict[str, Any]:
    """Shares of the studies with so many runs of such a deviation."""
    steep, flat = means(STEEP), means(FLAT)
    ((place, _),) = turns(np.log(BUDGETS), np.array(steep) - np.array(flat))
    factor = BUDGETS[-1] / reached(steep, flat[-1])
    found = dict.fromkeys((*INTERVALS, "turn told", "equal models turn", "law refused", "wrong law refused"), 0)
    for study in range(STUDIES):
        generator = np.random.Generator(np.random.PCG64([study, count, round(1e6 * deviation)]))
        a, b = runs(steep, count, deviation, generator), runs(flat, count, deviation, generator)
        law = law_of(BUDGETS, a, 0.95)
        for name, each, true in (("floor", law.floor, STEEP[0]), ("exponent", law.exponent, STEEP[2]),
                                 ("told beforehand", said_of(BUDGETS, a[:-1], 0.95), steep[-1])):
            found[name] += each is not None and each.low is not None and each.high is not None and (
                each.low <= true <= each.high)
        found["law refused"] += law.floor is None
        met = crossings(BUDGETS, {"a": a, "b": b}, 0.95)
        found["turn"] += any((each.low or 0) <= math.exp(place) <= (each.high or math.inf) for each in met)
        found["turn told"] += any(each.told for each in met)
        (saved,) = speed_ups(BUDGETS, {"a": a, "b": b}, 0.95)
        found["saving"] += saved.better == "a" and saved.low <= factor <= saved.high
        equal = {"a": a, "b": runs(steep, count, deviation, generator)}
        found["equal models turn"] += any(each.told for each in crossings(BUDGETS, equal, 0.95))
        found["wrong law refused"] += law_of(BUDGETS, runs(STEP, count, deviation, generator), 0.95).floor is None
    return {"runs": count, "deviation": deviation, **{name: each / STUDIES for name, each in found.items()}}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown."""
    names = list(rows[0])
    head = [f"| {' | '.join(names)} |", f"|{'---:|' * len(names)}"]
    return "\n".join([*head, *(f"| {row['runs']} | {row['deviation']:g} | " + " | ".join(
        f"{row[name]:.1%}" for name in names[2:]) + " |" for row in rows)])


def page(result: dict[str, Any]) -> str:
    """The README with the table of a result."""
    before, _, _ = (HERE / "README.md").read_text(encoding="utf-8").partition(MARK)
    worst = min(row[name] for row in result["rows"] for name in INTERVALS)
    false = max(row["equal models turn"] for row in result["rows"])
    return (f"{before}{MARK}\n{table(result['rows'])}\n\n{result['studies']} studies a row. Intervals of 95 % contain "
            f"what is true in {worst:.1%} of the studies or more; equal models are said to turn in {false:.1%} at "
            "most.\n")


def main() -> None:
    rows = [simulated(count, deviation) for count in COUNTS for deviation in DEVIATIONS]
    result = {"studies": STUDIES, "python": platform.python_version(), "numpy": np.__version__, "rows": rows}
    (HERE / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (HERE / "README.md").write_text(page(result), encoding="utf-8")


if __name__ == "__main__":
    main()

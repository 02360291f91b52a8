"""The page of a study on generated rows: its tables, its pictures, and where they stand in README.md."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.comparison.statistics import t_test
from weft.comparison.study_settings import Side
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure

BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->"
CONFIDENCE = 0.95


def interval(values: list[float]) -> str:
    """The mean in percent, with half its interval over seeds."""
    found = t_test(values, CONFIDENCE).interval
    half = "" if found.low is None else f" ± {100 * (found.mean - found.low):.1f}"
    return f"{100 * found.mean:.1f}{half}"


def sizes_of(study: Mapping[str, Any], name: str) -> list[int]:
    """The sizes of a contestant: the study's, or 0 for a model of its own."""
    own = study["contestants"][name]
    return [0] if isinstance(own, Mapping) and "layers" not in own else list(study["sizes"])


def steps_of(study: Mapping[str, Any], task: str, name: str) -> int:
    """Steps of a run: the contestant's own, or the study's; one number for all tasks, or one for each."""
    own = study["contestants"][name]
    given = own.get("steps", study["steps"]) if isinstance(own, Mapping) else study["steps"]
    steps: int = given[task] if isinstance(given, Mapping) else given
    return steps


def rates_at_edge(tried: Mapping[str, float]) -> list[Side]:
    """The sides on which the best of the rates that were tried, of equals the first, is the last one."""
    rates, best = sorted(map(float, tried)), float(max(tried, key=lambda each: tried[each]))
    sides: dict[Side, float] = {"below": rates[0], "above": rates[-1]}
    return [side for side, rate in sides.items() if rate == best]


def searches(result: Mapping[str, Any]) -> list[str]:
    """With which seeds rates were tried, how many searches tried rates beyond the given ones, and whose best lies at
    the edge even so; which processors made what, where there are several."""
    study, rows = result["study"], [row for row in result["rows"] if row["tried"]]
    given = sorted(map(float, study["rates"]))
    more = sum(len(row["tried"]) > len(given) for row in rows)
    at_edge = [f"{named(row, study)} ({row['rate']:g})" for row in rows if rates_at_edge(row["tried"])]
    said = [f"Rates were tried with {seeds_of_trials(study, rows)}: {listed(given)}, and the next one beyond an edge "
            f"in {more} of {len(rows)} searches. "
            + ("At the edge of those tried, so that a better rate may lie beyond: "
               f"{'all' if len(at_edge) == len(rows) else ', '.join(at_edge)}." if at_edge else
               "No best rate lies at the edge of those tried.")]
    made = Counter(row["processor"] for row in result["rows"])
    first, *others = [name for name, _ in made.most_common()] + sorted(
        {place for row in rows for place in row["tried_on"].values()} - made.keys())
    for place in others:
        runs = ", ".join(named(row, study) for row in result["rows"] if row["processor"] == place)
        trials = sum(each == place for row in rows for each in row["tried_on"].values())
        said.append(f"Made on an {place}: {trials} trial{'s' * (trials > 1)}" + f" and the runs of {runs}" * bool(runs)
                    + f"; all else on an {first}.")
    return said


def seeds_of_trials(study: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """The seed of the trials of most searches and whether it counts, and the searches that had another."""
    said = []
    for seed, number in Counter(row["trial_seed"] for row in rows).most_common():
        favours = "which counts too, so that it is favoured" if seed in study["seeds"] else "which does not count"
        those = [named(row, study) for row in rows if row["trial_seed"] == seed]
        said.append(f"seed {seed}, {favours}" + f" ({', '.join(those)})" * (bool(said) or number < len(rows) / 2))
    return "; with ".join(said)


def listed(rates: Iterable[float]) -> str:
    """Rates as they would be written."""
    return ", ".join(f"{rate:g}" for rate in rates)


def named(row: Mapping[str, Any], study: Mapping[str, Any]) -> str:
    """A contestant, with its size and its task where there are several."""
    task = f" on {row['task']}" if len(study["tasks"]) > 1 else ""
    return f"{row['contestant']}{task}" + (f" {row['size']}" if len(study["sizes"]) > 1 and row["size"] else "")


def missing(result: Mapping[str, Any]) -> list[str]:
    """The contestants that have not been run in a task in all sizes yet, in words."""
    study, done = result["study"], {(each["task"], each["contestant"], each["size"]) for each in result["rows"]}
    return [f"{name} on {task}" for task in study["tasks"] for name in study["contestants"]
            if any((task, name, size) not in done for size in sizes_of(study, name))]


def tables(result: Mapping[str, Any], names: Iterable[str]) -> str:
    """A table for each task, what has not been run yet, and the pictures."""
    lines: list[str] = []
    for task in result["study"]["tasks"]:
        rows = [each for each in result["rows"] if each["task"] == task]
        if not rows:
            continue
        lengths = list(rows[0]["accuracy"])
        lines += [f"**{task}**: accuracy on test rows, %, by tokens of a row" if lengths != ["0"] else
                  f"**{task}**: accuracy on test rows, %", "",
                  "| contestant | d_model | parameters | state, bytes | steps | rate | "
                  + " | ".join(length if length != "0" else "accuracy" for length in lengths) + " |",
                  "| --- | ---: | ---: | ---: | ---: | ---: | " + " | ".join("---:" for _ in lengths) + " |"]
        for each in rows:
            state, steps = each["state_bytes"][lengths[0]], steps_of(result["study"], task, each["contestant"])
            trained = f"{steps:,} | {each['rate']:g}" if each["tried"] else " | "  # a model that is counted has neither
            lines.append(f"| {each['contestant']} | {each['size'] or ''} | {each['parameters']:,} | "
                         f"{'' if state is None else f'{state:,}'} | {trained} | "
                         + " | ".join(interval(values) for values in each["accuracy"].values()) + " |")
        lines.append("")
    lines += [f"{len(result['study']['seeds'])} seeds, intervals at {CONFIDENCE:.0%}; torch {result['torch']}, "
              f"{' and '.join(dict.fromkeys(each['processor'] for each in result['rows']))}, "
              f"{sum(each['processor_seconds'] for each in result['rows']):,} seconds of processor time.", "",
              *searches(result), ""]
    if left := missing(result):
        lines += [f"Not run yet: {', '.join(left)}; the command goes on with them.", ""]
    return "\n".join([*lines, *(f"![{name}]({name}.svg)" for name in names), ""])


def pictures(result: Mapping[str, Any]) -> list[Figure]:
    """Accuracy against bytes of state where there are several sizes, against length where there are several."""
    figures = []
    for task in result["study"]["tasks"]:
        rows = [each for each in result["rows"] if each["task"] == task]
        if not rows:
            continue
        names = list(dict.fromkeys(each["contestant"] for each in rows))
        first = next(iter(rows[0]["accuracy"]))
        by_state = [Curve(name, sorted((float(each["state_bytes"][first] or 1), mean(each["accuracy"][first]))
                                       for each in rows if each["contestant"] == name), style, dots=True)
                    for style, name in enumerate(names)]
        if len(result["study"]["sizes"]) > 1:
            figures.append(chart(f"{task}-state", f"{task}: accuracy against the state",
                                 "Accuracy of each contestant against the bytes of its state.", by_state,
                                 "bytes of state", "accuracy", lengths=True, width=560, include=(0, 1), letters=18))
        largest = [each for each in rows if each["size"] in (0, max(result["study"]["sizes"]))]
        if len(rows[0]["accuracy"]) > 1:
            curves = [Curve(each["contestant"], [(float(length), mean(values)) for length, values in
                                                 each["accuracy"].items()], style, dots=True)
                      for style, each in enumerate(largest)]
            figures.append(chart(f"{task}-length", f"{task}: accuracy against the length of a row",
                                 "Accuracy of each contestant against the length of test rows.", curves,
                                 "tokens of a row", "accuracy", lengths=True, width=560, include=(0, 1), letters=18))
    return figures


def mean(values: list[float]) -> float:
    """The mean over seeds."""
    return statistics.fmean(values)


def write(result: Mapping[str, Any], out: Path) -> None:
    """Write the tables into the page, and the pictures."""
    figures = pictures(result)
    for figure in figures:
        (out / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")
    page = out / "README.md"
    before, _, rest = (page.read_text(encoding="utf-8") if page.exists() else BEGIN + END).partition(BEGIN)
    _, _, after = rest.partition(END)
    names = [figure.name for figure in figures]
    page.write_text(f"{before}{BEGIN}{tables(result, names)}{END}{after}", encoding="utf-8")

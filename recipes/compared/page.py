"""What a README says of a study that `weft compare` has run, without its timings: a table, the differences, pictures.

    python recipes/compared/page.py recipes/hippo/unstructured

The folder holds result.json. Its name is that of the marks in the README of the folder above, between which the page
is written, and the beginning of the names of the pictures. Timings are left out, since nobody knows what else the
machine did; report.html has them.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.comparison.folder import read_result
from weft.comparison.mixtures import mixtures
from weft.comparison.results import CurvePoint, StudyModel
from weft.comparison.study_result import StudyResult
from weft.comparison.verdict import mean_interval
from weft.disk.atomic import write_file
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure

LATER = "Beyond the edge: "
"""How a note begins on rates that were tried after the study, and on runs that were made anew for them."""


def marks(name: str) -> tuple[str, str]:
    """The lines between which the page of a study stands."""
    return f"<!-- {name} -->\n", f"<!-- /{name} -->\n"


def ranked(found: StudyResult) -> list[StudyModel]:
    """The models that finished, the best first."""
    return sorted((entry for entry in found.entries if entry.bits_per_byte is not None),
                  key=lambda entry: entry.bits_per_byte or 0.0)


def interval(values: Sequence[float], confidence: float) -> str:
    """The mean and half the width of its interval over runs."""
    each = mean_interval(list(values), confidence)
    return f"{each.mean:.4f}" + ("" if each.high is None else f" ± {each.high - each.mean:.4f}")


def table(found: StudyResult) -> list[str]:
    """A line for each model: its size, its state, the rates its runs chose, and bits per byte by length of window; the
    tokens of a run where models differ in them."""
    best = ranked(found)
    contexts = [point.context for point in best[0].finished[0].by_length]
    differ = len(tokens_read(found)) > 1
    lines = ["| model | parameters | state, bytes | training FLOPs | " + "tokens | " * differ
             + "rates chosen | bits per byte | " + " | ".join(f"windows of {context}" for context in contexts) + " |",
             "| --- | ---: | ---: | ---: | " + "---: | " * differ + "--- | ---: |" + " ---: |" * len(contexts)]
    for entry in best:
        runs = entry.finished
        state = next(point.state_bytes for point in entry.decode if point.context == entry.context)
        # A run of a model that gives NaN on such windows has no figure there.
        far = [statistics.fmean(math.nan if (bits := run.by_length[place].bits_per_byte) is None else bits
                                for run in runs) for place in range(len(contexts))]
        read = f"{runs[0].tokens:,} | " * differ
        lines.append(f"| {entry.name} | {entry.parameters:,} | {state:,} | {runs[0].flops:.2e} | {read}"
                     f"{', '.join(f'{rate:g}' for rate in sorted({run.lr for run in runs if run.lr}))} | "
                     f"{interval([run.bits_per_byte for run in runs if run.bits_per_byte], found.level)} | "
                     + " | ".join(f"{value:.4f}" if math.isfinite(value) else "not finite" for value in far) + " |")
    return lines


def tokens_read(found: StudyResult) -> list[int]:
    """The different numbers of tokens that models are trained on, rising; all runs of a model have as many."""
    return sorted({entry.finished[0].tokens for entry in found.entries if entry.finished})


def differences(found: StudyResult) -> list[str]:
    """Every pair in words."""
    said = []
    for pair in found.differences:
        low, high, mean = pair.over_both.low, pair.over_both.high, pair.over_both.mean
        better, worse = (pair.first, pair.second) if mean < 0 else (pair.second, pair.first)
        around = "" if low is None or high is None else f" ({min(abs(low), abs(high)):.4f} to " \
                                                        f"{max(abs(low), abs(high)):.4f})"
        certain = "" if pair.p_holm is None else f", p = {pair.p_holm:.2g}"
        said.append(f"* {better} and {worse} are not told apart: {abs(mean):.4f}{certain}" if pair.tied else
                    f"* {better} is better than {worse} by {abs(mean):.4f}{around}{certain}")
    return said


def page(found: StudyResult, name: str) -> str:
    """What stands between the marks."""
    read = tokens_read(found)
    tokens = f"{read[0]:,}" if len(read) == 1 else f"{read[0]:,} to {read[-1]:,}"
    machine = found.machine
    return "\n".join([
        *table(found), "",
        f"{runs_of(found)}, {tokens} tokens each; intervals at {found.level:.0%} over runs; state "
        f"after {found.entries[0].context:,} tokens. The windows are of a part of the test text. torch "
        f"{machine.torch}, {machine.processor}.", "",
        f"Differences in bits per byte, tested {'run by run' if found.test == 'paired' else 'as independent runs'} and "
        "over the documents of the test text at once, p corrected for the number of pairs:", "",
        *differences(found), "", rates(found), "", *(line for note in later(found) for line in (note, "")),
        *(f"![{figure.title}]({figure.name}.svg)" for figure in pictures(found, name)), ""])


def rates(found: StudyResult) -> str:
    """The learning rates among which runs chose, and how many chose the lowest or the highest."""
    runs = [(entry.name, run.lr, sorted(trial.lr for trial in run.trials)) for entry in found.entries
            for run in entry.finished if run.lr]
    given = sorted({lr for _, lr, tried in runs if not tried})
    if given:
        return f"Every run has the rate {', '.join(f'{lr:g}' for lr in given)}; no other was tried, of no model."
    at_edge = {end: [name for name, lr, tried in runs if lr == tried[place]]
               for end, place in (("lowest", 0), ("highest", -1))}
    said = [f"{len(names)} of {len(runs)} runs chose the {end} ({', '.join(dict.fromkeys(names))})"
            for end, names in at_edge.items() if names]
    tried, numbers = sorted({lr for _, _, each in runs for lr in each}), sorted({len(each) for _, _, each in runs})
    share = "" if numbers[0] == len(tried) else f"{' to '.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))} of "
    return (f"Each run chose among {share}the rates {', '.join(f'{lr:g}' for lr in tried)}. "
            + (f"{'; '.join(said)}: a better one may lie beyond." if said else "None chose the lowest or the highest."))


def later(found: StudyResult) -> list[str]:
    """What was tried and run after the study, beyond the edge of its rates, and where; whose runs are a mixture."""
    return [note for note in found.notes if note.startswith(LATER)] + [each.words() for each in mixtures(found.entries)]


def runs_of(found: StudyResult) -> str:
    """How many runs of each model there are."""
    finished = [len(entry.finished) for entry in found.entries]
    low, high = min(finished), max(finished)
    if low == high == found.seeds:
        return f"{found.seeds} runs of each"
    return f"{low if low == high else f'{low} to {high}'} of {found.seeds} runs of each have finished"


def pictures(found: StudyResult, name: str) -> list[Figure]:
    """Bits per byte during training, against tokens and against operations."""
    axes: list[tuple[str, str, Callable[[CurvePoint], float]]] = [
        ("training", "thousands of tokens", lambda point: point.tokens / 1e3),
        ("flops", "GFLOPs, forward and backward", lambda point: point.flops / 1e9)]
    return [chart(f"{name}-{ending}", f"Bits per byte against {unit}", "The mean over runs for each model.",
                  [Curve(entry.name, course(entry, along), style, dots=True)
                   for style, entry in enumerate(found.entries) if entry.finished],
                  unit, "bits per byte", width=560, height=300, letters=15) for ending, unit, along in axes]


def course(entry: StudyModel, along: Callable[[CurvePoint], float]) -> list[tuple[float, float]]:
    """The mean over runs at every checkpoint."""
    runs = [run.curve for run in entry.finished]
    return [(along(point), statistics.fmean(run[place].bits_per_byte for run in runs))
            for place, point in enumerate(runs[0])]


def write(folder: Path) -> None:
    """Write the page of a study's result and its pictures."""
    found, name = read_result(folder), folder.name
    begin, end = marks(name)
    readme = folder.parent / "README.md"
    before, mark, rest = readme.read_text(encoding="utf-8").partition(begin)
    _, last, after = rest.partition(end)
    if not mark or not last:
        raise ValueError(f"{readme}: it has no lines {begin.strip()} and {end.strip()}. Put them where the result of "
                         f"the study is to stand.")
    for figure in pictures(found, name):
        write_file(folder.parent / f"{figure.name}.svg", f"{figure.alone()}\n")
    write_file(readme, f"{before}{begin}{page(found, name)}{end}{after}")


def main() -> None:
    """Write the pages of the studies that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="+", help="that holds result.json")
    for folder in parser.parse_args().folder:
        write(folder)


if __name__ == "__main__":
    main()

"""The study's figures as CSV files inside the page: its models, and every run, with seven digits."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import TypeAlias
from urllib.parse import quote

from weft.comparison.report.ranking import interval_of, perplexity
from weft.comparison.report.training import outcome
from weft.comparison.report.view import View
from weft.comparison.results import RunResult, StudyModel
from weft.comparison.verdict import letters
from weft.drawing.markup import Markup, join, tag

Cell: TypeAlias = "str | float | None"

MODELS = ("model", "what it is", "bits per byte", "interval low", "interval high", "perplexity per token", "letters",
          "parameters", "of which embeddings", "training FLOPs", "training tokens", "training seconds",
          "training seconds, fastest run", "training seconds, slowest run", "tokens per second", "peak memory bytes",
          "state bytes", "seconds per decoded token", "lower quartile", "upper quartile", "runs finished", "runs")
RUNS = ("model", "run", "seed", "order seed", "outcome", "learning rate", "bits per byte", "nats per token", "steps",
        "tokens", "FLOPs", "seconds", "tokens per second", "peak memory bytes", "trials (learning rate=bits per byte)",
        "folder", "note")


def sheets(view: View) -> Markup:
    """Links that save the files; they hold the files themselves."""
    files = (("models.csv", MODELS, [_model(view, entry) for entry in view.ranked]),
             ("runs.csv", RUNS, [_run(entry, run) for entry in view.ranked for run in entry.runs]))
    return tag("p", {"class": "downloads"}, "Save as CSV: ", join(*[join(
        " \u00b7 " if place else "", tag("a", {"download": name, "href": "data:text/csv;charset=utf-8," + quote(
            text_of(head, rows), safe=" ,:;=+/()-_.~")}, name)) for place, (name, head, rows) in enumerate(files)]))


def text_of(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """A CSV file. What is not known is empty. Text that a spreadsheet would work out as a formula begins
    with an apostrophe."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([[_cell(value) for value in row] for row in rows])
    return file.getvalue()


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        plain = value.encode("utf-8", "replace").decode()
        return f"'{plain}" if plain.startswith(("=", "+", "-", "@", "\t", "\r")) else plain
    if value is None or not math.isfinite(value):
        return ""
    return f"{value:.7g}"


def _model(view: View, entry: StudyModel) -> list[Cell]:
    interval, state = interval_of(entry, view.result.level), entry.state
    seconds = [run.seconds for run in entry.finished]
    return [entry.name, entry.kind, entry.bits_per_byte, *((None, None) if interval is None else
                                                           (interval.low, interval.high)),
            perplexity(entry), " ".join(letters(entry.name, view.result.tied_sets)), entry.parameters,
            entry.embedding_parameters if entry.trainable else None,
            entry.median(lambda run: run.flops) if entry.trainable else None,
            entry.median(lambda run: float(run.tokens)), entry.median(lambda run: run.seconds),
            min(seconds, default=None), max(seconds, default=None),
            entry.median(lambda run: run.tokens_per_second), entry.median(lambda run: float(run.peak_memory_bytes)),
            *((None,) * 4 if state is None else (state.state_bytes, state.seconds, state.low, state.high)),
            len(entry.finished), len(entry.runs)]


def _run(entry: StudyModel, run: RunResult) -> list[Cell]:
    return [entry.name, run.index + 1, run.seed, run.order_seed, run.status, run.lr, run.bits_per_byte, run.loss,
            run.steps, run.tokens, run.flops if entry.trainable else None, run.seconds, run.tokens_per_second,
            run.peak_memory_bytes, "; ".join(f"{trial.lr:g}={outcome(trial)}" for trial in run.trials), run.folder,
            run.note]

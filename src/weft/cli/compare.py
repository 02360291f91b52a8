"""``weft compare``. The table that fills while a study runs: a row for each model, a column for each run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from weft.cli.closing import Given, word
from weft.cli.compare_table import print_study
from weft.cli.options import Device, Json, Plugin, Threads, TrainingTokens, Unchecked, guarded, prepare, print_json
from weft.cli.text import console, table

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live

    from weft.comparison.ladder_findings import LadderResult
    from weft.comparison.progress import StudyProgress
    from weft.comparison.study_result import StudyResult



Models = Annotated[list[str] | None, typer.Argument(
    metavar="MODEL... [key.path=value...]", help="Presets or configuration files, and changes to the study.")]


def _after(given: Given) -> str:
    folder = given["report"] or given["out"]
    return (f"open {word(folder / 'report.html')} in a browser; weft compare --report {word(folder)} writes it again "
            "from its runs")


@guarded(_after)
def compare(models: Models = None,
            study: Annotated[Path | None, typer.Option("--study", help="A study; its file.")] = None,
            budget: Annotated[str | None, typer.Option("--budget", help="What is equal for all models, as KIND=AMOUNT: "
                                                       "parameters, flops, tokens, seconds or state_bytes.")] = None,
            steps: Annotated[int | None, typer.Option("--steps", min=1, help="Training steps; of each model.")] = None,
            tokens: TrainingTokens = None,
            seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Runs of each model; default 3, or 5 "
                                                      "with four or more models.")] = None,
            trials: Annotated[int | None, typer.Option("--trials", min=1, help="Learning rates tried before each "
                                                       "run; default 3. With 1, each model keeps its own.")] = None,
            data: Annotated[Path | None, typer.Option("--data", help="A text file or folder; also one that was "
                                                     "prepared.")] = None,
            out: Annotated[Path, typer.Option("--out", help="Write here; the study's folder.")] = Path("runs/compare"),
            ladder: Annotated[str | None, typer.Option(
                "--ladder", help="The same study at several budgets, KIND=FIRST:LAST:COUNT or KIND=A,B,C; kinds are "
                "tokens, flops, seconds and parameters.")] = None,
            report: Annotated[Path | None, typer.Option("--report", help="Only write the report of this study's "
                                                        "folder again.")] = None,
            device: Device = "cpu", threads: Threads = None, plugin: Plugin = None, unchecked: Unchecked = False,
            json: Json = False) -> None:
    """Train models under one budget and compare how well they predict.

    Writes result.json and report.html to --out. The same command continues a study that has stopped, and repeats runs
    that were interrupted from outside; with more models, seeds or tokens the study grows, and runs that still count are
    kept. Fails if no run finished.
    """
    prepare(plugin)
    from weft import api

    if report is not None:
        typer.echo(f"wrote {api.compare_report(report)}")
        return
    changes = [each for each in models or [] if "=" in each]
    names = [each for each in models or [] if "=" not in each]
    given = _given(budget, steps, tokens, seeds, trials, data)
    settings: dict[str, Any] = {"study": study, "given": given, "out": out, "device": device, "threads": threads,
                                "plugins": [str(each) for each in plugin or []], "unchecked": unchecked,
                                "command": shlex.join(["weft", *sys.argv[1:]])}
    with watching(json=json) as watch:
        if ladder is not None:
            found = api.compare_ladder(names, changes, ladder=ladder, on_progress=watch, **settings)
        else:
            result = api.compare(names, changes, on_progress=watch, **settings)
    if ladder is not None:
        _climbed(found, json=json, page=out / "report.html")
        return
    if json:
        print_json(result)
    else:
        print_study(result)
        typer.echo(f"report {out / 'report.html'}")
    _require_some(result)


def _climbed(found: LadderResult, *, json: bool, page: Path) -> None:
    """Print what a ladder has found."""
    from weft.comparison.report.ladder_page import choice_said, laws_said, savings_said, turns_said

    if json:
        print_json(found)
        return
    for said in (*turns_said(found), choice_said(found), *savings_said(found), *laws_said(found)):
        typer.echo(said)
    typer.echo(f"report {page}")


def _require_some(result: StudyResult) -> None:
    """Raise `FailedError` if no run of the study finished."""
    from weft.core.errors import FailedError

    runs = [run for entry in result.entries for run in entry.runs]
    if not any(entry.finished for entry in result.entries):
        raise FailedError(f"no run of this study finished; the first: {runs[0].note}", where=result.entries[0].name,
                          remedy="The table above names the others.")


def _given(budget: str | None, steps: int | None, tokens: float | None, seeds: int | None, trials: int | None,
           data: Path | None) -> dict[str, Any]:
    """The keys of a study that the options set."""
    tried = None if trials is None else {"count": trials, "learning_rates": None}
    found: dict[str, Any] = {"seeds": seeds, "trials": tried,
                             "data": None if data is None else {"path": str(data)},
                             "budget": None if budget is None else _budget(budget)}
    length = {key: value for key, value in (("steps", steps), ("tokens", tokens)) if value is not None}
    return {key: value for key, value in {**found, "length": length or None}.items() if value is not None}


def _budget(text: str) -> dict[str, Any]:
    from weft.core.errors import InputError

    kind, _, amount = text.partition("=")
    try:
        return {"kind": kind.strip(), "amount": float(amount.replace("_", ""))}
    except ValueError:
        raise InputError(f"{text!r} is not a budget.", where="--budget",
                         remedy="Give KIND=AMOUNT, such as parameters=2e6.") from None


def watching(*, json: bool) -> AbstractContextManager[Callable[[StudyProgress], None] | None]:
    """The display of the study's progress: a table that fills on a terminal, lines elsewhere, nothing beside JSON."""
    if json:
        return nullcontext()
    return FillingTable() if sys.stdout.isatty() else nullcontext(lambda progress: typer.echo(progress.line()))


MOST_RUNS = 8
"""Columns of runs: of more, the last are shown."""


@final
class FillingTable(AbstractContextManager["FillingTable"]):
    """Draws a study's progress on a terminal, from ``with`` to its end, and leaves the last state of it there.

    A cell holds bits per byte of the run where it has finished, and before that what is being done: a trial by its
    learning rate, or the share of the run that is done.

    Args:
        out: the terminal; None: the standard one.
    """

    def __init__(self, out: Console | None = None) -> None:
        self.out = out or console()
        self.cells: dict[tuple[str, int], str] = {}
        self.last: StudyProgress | None = None
        self._live: Live | None = None

    def __enter__(self) -> FillingTable:
        from rich.live import Live

        self._live = Live(console=self.out, auto_refresh=False)
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def __call__(self, progress: StudyProgress) -> None:
        """One line of the study's course; one that is to last stays above the table."""
        self.last = progress
        if (piece := progress.piece) is not None:
            self.cells[piece.model, piece.attempt] = piece.cell()
        if progress.lasting:
            self.out.print(f"{progress.what}: {progress.text}")
        if self._live is not None:
            self._live.update(self.drawn(), refresh=True)

    def drawn(self) -> Group:
        """The table, and below it the last line."""
        from rich.console import Group

        last = self.last
        if last is None:
            return Group("")
        shown = range(max(0, last.attempts - MOST_RUNS), last.attempts)
        rows = table("bits/byte", *(f">run {index + 1}" for index in shown))
        for model in last.models:
            rows.add_row(model, *(self.cells.get((model, index), "\u00b7") for index in shown))
        return Group(rows, last.line())

"""``weft eval --task BENCHMARK``: scores on published data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from weft.cli.options import Common, print_json
from weft.cli.text import console, section, table

if TYPE_CHECKING:
    from weft.benchmarks import BenchmarkResult
    from weft.evaluation.completions import Progress as Told

BETWEEN = 10.0
"""Seconds between two lines of progress where there is no terminal."""


def run_benchmark(checkpoints: list[Path], task: str | dict[str, Any], data: Path | None, common: Common, *,
                  context: int | None, batch_size: int, limit: int | None, run_programs: bool, run_code: Sequence[Path],
                  out: Path | None) -> None:
    """Run a benchmark and print its scores; of several models also every difference, by the same requests. Raises
    `OccupiedError`: something is where the results are to be written."""
    from weft import api
    from weft.core.strict_json import dumps
    from weft.disk.atomic import new_file
    from weft.disk.ownership import require_free

    if out is not None:
        require_free(out, single=True)
    with showing_progress() as progress:
        found = [api.benchmark(each, task, data, context=context, batch_size=batch_size, limit=limit,
                               run_programs=run_programs, run_code=run_code, device=common.device,
                               dtype=common.dtype, progress=progress) for each in checkpoints]
    pairs = api.compared_by_request(found) if len(found) > 1 else ()
    told = found[0] if len(found) == 1 else {"results": found, "differences": pairs}
    if out is not None:
        with new_file(out) as draft:
            draft.write_text(dumps(told, indent=1) + "\n", encoding="utf-8")
    if common.json:
        print_json(told)
        return
    for each in found:
        if len(found) > 1:
            typer.echo(f"{each.model}:")
        show(each)
    for pair in pairs:
        typer.echo(pair.line())


def show(found: BenchmarkResult) -> None:
    """Print the scores and the protocol."""
    out, rows = console(), table("of", "measure", ">value", ">standard error", ">95 % interval", ">n")
    for score in found.scores:
        error = "" if score.standard_error is None else f"{score.standard_error:.4f}"
        bounds = "" if score.low is None else f"{score.low:.4f} to {score.high:.4f}"
        rows.add_row(score.of or "all", score.name, f"{score.value:.4f}", error, bounds, f"{score.n:,}")
    section(out, found.benchmark, rows)
    typer.echo("protocol:")
    for line in found.protocol.describe().split("\n"):
        typer.echo(f"  {line}")


@contextmanager
def showing_progress(what: str = "requests") -> Iterator[Told]:
    """A function that shows the progress of ``what`` on standard error while the block lasts: a bar on a terminal, now
    and then a line elsewhere."""
    screen = console(err=True)
    if not screen.is_terminal:
        yield Lines(what).told
        return
    with Bar(screen, what) as bar:
        yield bar.told


@final
class Lines:
    """A line of progress every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = self._last = time.monotonic()

    def told(self, done: int, total: int) -> None:
        """Print a line if the last one is old enough."""
        now = time.monotonic()
        if not done:
            self._began = self._last = now  # what came before was loading
        elif done < total and now - self._last >= BETWEEN:
            self._last = now
            typer.echo(f"{done:,}/{total:,} {self._what}  {left_of(done, total, now - self._began)}", err=True)


@final
class Bar:
    """A bar of progress with the time left."""

    def __init__(self, screen: Console, what: str) -> None:
        self._bar = Progress(TextColumn(what), BarColumn(bar_width=None), MofNCompleteColumn(),
                             TextColumn("{task.fields[left]}"), console=screen, expand=True, transient=True)
        self._task, self._began = self._bar.add_task("", total=None, left=""), time.monotonic()

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def told(self, done: int, total: int) -> None:
        """Move the bar."""
        if not done:
            self._began = time.monotonic()  # what came before was loading
        left = left_of(done, total, time.monotonic() - self._began)
        self._bar.update(self._task, completed=done, total=total, left=left)


def left_of(done: int, total: int, seconds: float) -> str:
    """The time that is left, if the rest is as fast as what is done. Long rows come first, so it is rather less."""
    from weft.training.events import clock_time

    return f"{clock_time(seconds / done * (total - done))} left" if done else ""

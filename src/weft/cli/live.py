"""The progress of a run: a progress bar on a terminal, one line for each event elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import final

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from weft.cli import terminal
from weft.training.events import Event, Listener, Saved, Started, clock_time
from weft.training.events import Progress as Measured


@contextmanager
def showing(*, quiet: bool, console: Console | None = None) -> Iterator[Listener | None]:
    """A listener that shows a run while the block lasts; none when ``quiet``."""
    screen = terminal.console() if console is None else console
    if quiet:
        yield None
    elif screen.is_terminal:
        with Live(screen) as live:
            yield live.show
    else:
        yield lambda event: typer.echo(event.line())


@final
class _Bar(Progress):
    """One bar, with lines of text beneath it that may be as wide as the terminal."""

    figures = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.figures:
            yield Text(self.figures)


@final
class Live:
    """A progress bar with the latest figures beneath it; evaluations and notices scroll by above."""

    def __init__(self, console: Console) -> None:
        self._bar = _Bar(TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"), BarColumn(bar_width=None),
                         TaskProgressColumn(), TextColumn("{task.fields[left]}"), console=console, expand=True)
        self._task = self._bar.add_task("", total=None, left="", visible=False)

    def __enter__(self) -> Live:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, event: Event) -> None:
        """Move the bar, or print a line above it. Checkpoints are too frequent for a line each."""
        if isinstance(event, Measured):
            self._bar.figures = "  ".join(event.figures())
            self._bar.update(self._task, completed=event.step, left=f"{clock_time(event.seconds_left)} left")
        elif not isinstance(event, Saved):
            self._bar.console.print(event.line(), markup=False, highlight=False)
        if isinstance(event, Started) and event.steps:
            self._bar.update(self._task, total=event.steps, completed=event.step, visible=True)

"""The table that fills while a study runs: a row for each model, a column for each run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, final

from weft.cli.text import console, table

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live

    from weft.comparison import StudyProgress

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

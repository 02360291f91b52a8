"""The table that fills while a study runs."""

from __future__ import annotations

import io

from rich.console import Console

from weft.cli.compare import FillingTable
from weft.comparison.progress import StudyPiece, WorkClock


def test_cells_fill_as_pieces_begin_go_on_and_end() -> None:
    out = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    table = FillingTable(out)
    clock = WorkClock(table, lambda: 0.0, models=("lstm", "transformer"), attempts=2)

    def shown() -> list[list[str]]:
        with out.capture() as found:
            out.print(table.drawn())
        return [line.split() for line in found.get().splitlines()]

    clock.begin("lstm, trial", StudyPiece("lstm", 0, lr=0.01))
    assert shown()[:3] == [["bits/byte", "run", "1", "run", "2"], ["lstm", "lr", "0.01", "\u00b7"],
                           ["transformer", "\u00b7", "\u00b7"]]
    clock.report("lstm, run 1", "step 1/2", 0.5, StudyPiece("lstm", 0))
    assert shown()[1] == ["lstm", "50%", "\u00b7"]
    clock.finish("lstm, run 1", "finished", StudyPiece("lstm", 0, status="finished", bits_per_byte=2.34567), now=True)
    clock.finish("transformer, run 2", "diverged", StudyPiece("transformer", 1, status="diverged"), now=True)
    assert shown()[1:3] == [["lstm", "2.3457", "\u00b7"], ["transformer", "\u00b7", "diverged"]]
    assert "transformer, run 2: diverged" in " ".join(shown()[3])


def test_the_last_state_stays_on_the_terminal() -> None:
    file = io.StringIO()
    with FillingTable(Console(file=file, force_terminal=True, width=80)) as table:
        WorkClock(table, lambda: 0.0, models=("a",), attempts=1).finish(
            "a, run 1", "finished", StudyPiece("a", 0, status="finished", bits_per_byte=1.5), now=True)
    assert "1.5000" in file.getvalue()


def test_what_is_said_of_the_whole_study_stays_above_the_table() -> None:
    file = io.StringIO()
    with FillingTable(Console(file=file, force_terminal=True, width=80, color_system=None)) as table:
        clock = WorkClock(table, lambda: 0.0, models=("a",), attempts=1)
        clock.report("runs", "5 of each of 4 models", 0.0, lasting=True)
        clock.report("a, run 1", "step 1/2", 0.5, StudyPiece("a", 0))
    assert file.getvalue().count("runs: 5 of each of 4 models") > 1, "in the last line, and above the table"
    assert "runs: 5 of each of 4 models" not in " ".join(file.getvalue().splitlines()[-3:])

"""Write docs/parallel_table.md and the numbers behind it: `make table-parallel`.

The record says which mixers are left, so that a run that was stopped goes on there; where none is, all are measured
anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from parallel.processes import together
from parallel.table.columns import COLUMNS, Column
from parallel.table.page import PAGE, RECORD, page
from parallel.table.subjects import STEPS, mixers
from weft.core.errors import WeftError
from weft.core.part_config import PartConfig
from weft.training.parallel import World

TOGETHER = 3
"""Mixers for which processes are started once, which takes as long as a column."""
HOUR = 3600.0
"""Seconds, after which processes that do not end are killed."""


def cells(kinds: Sequence[str], columns: Iterable[Column], steps: int) -> dict[str, dict[str, Any]]:
    """The cells of some mixers: those of one process here, those of two in two processes that are started once."""
    chosen = list(columns)
    found = _measured(kinds, [column.name for column in chosen if column.processes == 1], None, steps)
    with tempfile.TemporaryDirectory() as place:
        names = [column.name for column in chosen if column.processes == 2]
        together(2, side_by_side, kinds, names, steps, Path(place), folder=Path(place), seconds=HOUR)
        both = json.loads((Path(place) / "cells.json").read_text("utf-8"))
    return {kind: {**found[kind], **both[kind]} for kind in kinds}


def side_by_side(kinds: Sequence[str], names: Sequence[str], steps: int, folder: Path) -> None:
    """The cells that need two processes, in each of them; rank 0 writes them."""
    torch.set_num_threads(1)
    with World.here() as world:
        found = _measured(kinds, names, world, steps)
        if world.leads:
            (folder / "cells.json").write_text(json.dumps(found), encoding="utf-8")


def _measured(kinds: Sequence[str], names: Sequence[str], world: World | None, steps: int) -> dict[str, dict[str, Any]]:
    rows = mixers()
    return {kind: {column.name: cell(column, rows[kind], world, steps) for column in COLUMNS if column.name in names}
            for kind in kinds}


def cell(column: Column, mixer: PartConfig | str, world: World | None, steps: int) -> dict[str, Any]:
    """The numbers of a cell, or in words why there are none."""
    if isinstance(mixer, str):
        return {"why": mixer}
    try:
        return column.measure(mixer, world, steps)._asdict()
    except WeftError as error:
        return {"why": str(error)}


def measured(steps: int = STEPS) -> Iterator[dict[str, Any]]:
    """The record after every few mixers, until none is left. A record with some left is gone on with."""
    rows = list(mixers())
    earlier = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {"left": []}
    done: dict[str, Any] = earlier["mixers"] if earlier["left"] else {}
    left = [kind for kind in rows if kind not in done]
    for some in (left[start:start + TOGETHER] for start in range(0, len(left), TOGETHER)):
        begun = time.perf_counter()
        done |= cells(some, COLUMNS, steps)
        print(f"{len(done)} of {len(rows)}: {', '.join(some)}, {time.perf_counter() - begun:.0f} s", file=sys.stderr,
              flush=True)
        yield {"torch": torch.__version__.split("+")[0], "steps": steps, "mixers": dict(sorted(done.items())),
               "left": [kind for kind in rows if kind not in done]}


def main() -> None:
    """Measure, and write both files as it goes."""
    torch.set_num_threads(1)
    for record in measured():
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(record), encoding="utf-8")


if __name__ == "__main__":
    main()

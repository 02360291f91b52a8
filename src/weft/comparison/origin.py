"""Where a piece of work comes from: the code that made it, and what in its folder is its own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.core.errors import OccupiedError
from weft.disk.atomic import tidy
from weft.disk.ownership import enumerated
from weft.training.code import changes

if TYPE_CHECKING:
    from weft.comparison.jobs import Job

DATA = "data"
"""Where in a study's folder its texts are."""
JOB_FILE = "job.json"
MEASURING = tuple(f"comparison/{name}.py" for name in ("counted", "measures", "texts", "work"))
"""Code of studies that decides what a piece of work finds, besides that of training."""
PIECES = frozenset({JOB_FILE, "result.json", "output.txt", "run", "curve.jsonl", "memory.txt"})
"""What a piece of work leaves in its folder."""


def placed(run: Mapping[str, Any], inside: Path) -> dict[str, Any]:
    """A run's configuration as plain data, in which a text of the study's own is named from the study's folder on, so
    that nothing depends on where that lies.

    Args:
        run: the configuration.
        inside: the study's folder, or any in it.
    """
    data = dict(run["data"])
    path = None if data.get("path") is None else Path(data["path"]).absolute()
    for study in (inside.absolute(), *inside.absolute().parents):
        if path is not None and path.is_relative_to(study / DATA):
            data["path"] = path.relative_to(study).as_posix()
            break
    return {**run, "data": data}


def made_by_other_code(job: Job) -> str:
    """Why what stands in the folder of a piece of work is not taken, where code alone is the reason; else nothing."""
    try:
        before = dict(json.loads((job.folder / JOB_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return ""
    if "code" not in before:
        return "was made before Weft wrote down which code makes a piece, so it is done again"
    same = before.get("key_without_code") == job.key_without_code()
    found = changes(before["code"], job.code()) if same else []
    return f"was made by other code ({'; '.join(found)}), so it is done again" if found else ""


def empty(folder: Path) -> None:
    """Delete what a piece of work has left under a name that other work now has.

    Raises:
        OccupiedError: the folder holds something else.
    """
    if not os.path.lexists(folder):
        return
    if folder.is_dir() and not folder.is_symlink():
        tidy(folder)
        found = sorted(path.name for path in folder.iterdir())
        own = PIECES if JOB_FILE in found else frozenset[str]()
        foreign = [name for name in found if name not in own]
    else:
        foreign = [folder.name]
    if foreign:
        raise OccupiedError(f"the folder of a piece of work holds what none has written: {enumerated(foreign)}.",
                            where=str(folder), remedy="Move it away, and the study does this piece.")
    shutil.rmtree(folder)

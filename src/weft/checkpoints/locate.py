"""Locating a checkpoint: the given folder, or the last checkpoint of a run folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from weft.checkpoints.layout import ADAPTER_FILE, CONFIG_FILE, MODEL_FILE, PEFT_FILE, RUN_CHECKPOINTS, RUN_FILE, RUN_ID
from weft.core.errors import CheckpointError
from weft.disk.atomic import standing, standing_in
from weft.disk.documents import read_json
from weft.disk.manifest import MANIFEST_FILE, has_manifest

STEP = re.compile(r"[0-9]{8,20}")
"""The names that `step_name` returns."""
FILES = (MANIFEST_FILE, CONFIG_FILE, MODEL_FILE)
"""A folder with any of these files is a checkpoint, possibly a damaged one."""
GIVE_ONE = "Give the folder of a checkpoint, or of a run that has one."


def saved_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, in the order of their steps."""
    return [path for path in step_folders(run) if (path / CONFIG_FILE).exists()]


def step_folders(run: Path) -> list[Path]:
    """The checkpoints that a run has written, damaged ones too, in the order of their steps."""
    own = run_id(run)
    return [path for path in _numbered(run) if own is None or _run_of(path) in (None, own)]


def is_own(checkpoint: Path, run: Path) -> bool:
    """Whether a folder among the checkpoints of a run is one that a run wrote, whatever has become of its files: it has
    a manifest, or its configuration names the run."""
    return has_manifest(checkpoint) or _run_of(checkpoint) == (run_id(run) or "")


def in_the_way(run: Path, after: int, last: int) -> list[Path]:
    """Files and folders under the names of checkpoints of the steps above ``after`` up to ``last`` that are no
    checkpoints."""
    folder, own = run / RUN_CHECKPOINTS, step_folders(run)
    within = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in within if STEP.fullmatch(path.name) and after < int(path.name) <= last
                  and path not in own and not (path.is_dir() and not path.is_symlink() and not any(path.iterdir())))


def foreign_checkpoints(run: Path) -> list[Path]:
    """Checkpoints in a run folder that another run has written."""
    return [path for path in _numbered(run) if path not in step_folders(run)]


def run_id(run: Path) -> str | None:
    """The unique id of the run in a folder; None if there is no run or its file is damaged."""
    content = _plain(run / RUN_FILE)
    return str(content["id"]) if "id" in content else None


def _numbered(run: Path) -> list[Path]:
    """The folders with the name and a file of a checkpoint, in the order of steps; other folders are ignored."""
    folders = [(int(name), path) for name, path in standing_in(run / RUN_CHECKPOINTS).items()
             if STEP.fullmatch(name) and any((path / file).exists() for file in FILES)]
    return [path for _, path in sorted(folders)]


def _run_of(checkpoint: Path) -> str | None:
    """The id of the run that wrote a checkpoint; None for a checkpoint without one, as of no run."""
    facts = _plain(checkpoint / CONFIG_FILE).get("facts")
    written_by = facts.get(RUN_ID) if isinstance(facts, dict) else None
    return None if written_by is None else str(written_by)


def _plain(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def holds_checkpoint(path: Path) -> bool:
    """Whether a folder has what `find_checkpoint` looks for: a checkpoint's configuration or an adapter's, or a
    run's checkpoints."""
    alone = any((path / name).exists() for name in (CONFIG_FILE, ADAPTER_FILE, PEFT_FILE))
    return alone or (path / RUN_CHECKPOINTS).is_dir()


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint at ``path``, or the last checkpoint of the run folder at ``path``. Raises `CheckpointError`:
    ``path`` is missing, or neither a checkpoint nor a run folder with one."""
    folder = standing(Path(path))
    if not folder.exists():
        raise CheckpointError("no such folder.", where=str(path), remedy=GIVE_ONE)
    if not folder.is_dir():
        raise CheckpointError("this is a file, not the folder of a checkpoint.", where=str(path), remedy=GIVE_ONE)
    if any((folder / name).exists() for name in (CONFIG_FILE, ADAPTER_FILE, PEFT_FILE)):
        return folder
    if (folder / RUN_CHECKPOINTS).is_dir():
        saved = saved_checkpoints(folder)
        if not saved:
            raise CheckpointError("the run has not saved a checkpoint yet.", where=str(path),
                                  remedy="Wait for the first one, or continue the run with --resume.")
        return saved[-1]
    raise CheckpointError(f"not a checkpoint: there is no {CONFIG_FILE} in it.", where=str(path), remedy=GIVE_ONE)

"""Finding a checkpoint: the folder itself, or the last one of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from weft.checkpoints.layout import CONFIG_FILE, MODEL_FILE, RUN_CHECKPOINTS, RUN_FILE, RUN_ID
from weft.core.errors import CheckpointError
from weft.disk.atomic import standing, standing_in
from weft.disk.manifest import MANIFEST_FILE

STEP = re.compile(r"\d{8,}")
"""Names as `step_name` gives them."""
FILES = (MANIFEST_FILE, CONFIG_FILE, MODEL_FILE)
"""Any of these makes a folder a checkpoint, though perhaps a damaged one."""
GIVE_ONE = "Give the folder of a checkpoint, or of a run that has one."


def saved_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, in the order of their steps."""
    return [path for path in step_folders(run) if (path / CONFIG_FILE).exists()]


def step_folders(run: Path) -> list[Path]:
    """The checkpoints that a run has written, damaged ones too, in the order of their steps."""
    own = run_id(run)
    return [path for path in _numbered(run) if own is None or _run_of(path) in (None, own)]


def foreign_checkpoints(run: Path) -> list[Path]:
    """Checkpoints in a run folder that another run has written."""
    return [path for path in _numbered(run) if path not in step_folders(run)]


def run_id(run: Path) -> str | None:
    """What tells a run from every other; None where no run stands, or its file is damaged."""
    content = _plain(run / RUN_FILE)
    return str(content["id"]) if "id" in content else None


def _numbered(run: Path) -> list[Path]:
    """What has the name and the files of a checkpoint of a step. What else lies beside is no business of a run's."""
    found = [(int(name), path) for name, path in standing_in(run / RUN_CHECKPOINTS).items()
             if STEP.fullmatch(name) and any((path / file).exists() for file in FILES)]
    return [path for _, path in sorted(found)]


def _run_of(checkpoint: Path) -> str | None:
    """The run that has written a checkpoint; None for one that does not say, as before it was written down."""
    facts = _plain(checkpoint / CONFIG_FILE).get("facts")
    found = facts.get(RUN_ID) if isinstance(facts, dict) else None
    return None if found is None else str(found)


def _plain(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint that ``path`` names: a checkpoint, or a run folder, whose last one is meant.

    Raises:
        CheckpointError: nothing is there, or something else.
    """
    folder = standing(Path(path))
    if not folder.exists():
        raise CheckpointError("no such folder.", where=str(path), remedy=GIVE_ONE)
    if not folder.is_dir():
        raise CheckpointError("a file, not the folder of a checkpoint.", where=str(path), remedy=GIVE_ONE)
    if (folder / CONFIG_FILE).exists():
        return folder
    if (folder / RUN_CHECKPOINTS).is_dir():
        saved = saved_checkpoints(folder)
        if not saved:
            raise CheckpointError("the run has not saved a checkpoint yet.", where=str(path),
                                  remedy="Wait for its first, or start it again with --resume.")
        return saved[-1]
    raise CheckpointError(f"not a checkpoint: there is no {CONFIG_FILE} in it.", where=str(path), remedy=GIVE_ONE)

"""Finding a checkpoint: the folder itself, or the last one of a run."""

from __future__ import annotations

from pathlib import Path

from weft.checkpoints.atomic import standing, standing_in
from weft.checkpoints.layout import CONFIG_FILE, RUN_CHECKPOINTS
from weft.core.errors import CheckpointError

GIVE_ONE = "Give the folder of a checkpoint, or of a run that has one."


def saved_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, in the order of their steps."""
    return [path for path in step_folders(run) if (path / CONFIG_FILE).exists()]


def step_folders(run: Path) -> list[Path]:
    """What stands where a run folder keeps its checkpoints, damaged ones too, in the order of their steps."""
    return [path for path in standing_in(run / RUN_CHECKPOINTS) if path.name.lstrip(".")[:1].isdigit()]


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

"""Names of the files in a checkpoint, and the version of their format."""

from __future__ import annotations

FORMAT_VERSION = 1
CONFIG_FILE = "config.json"
MODEL_FILE = "model.safetensors"
TRAINING_FILE = "training.safetensors"

RUN_CHECKPOINTS = "checkpoints"
"""Where a run folder keeps its checkpoints."""

RUN_FILE = "run.json"
"""What a run folder says of the run."""
RUN_ID = "run_id"
"""Among the facts of a checkpoint: the ``id`` that the run's file gives."""


def step_name(step: int) -> str:
    """Name of the checkpoint of a step; names sort as steps do."""
    return f"{step:08d}"

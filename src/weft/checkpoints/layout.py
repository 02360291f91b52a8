"""Names of the files in a checkpoint, and the version of their format."""

from __future__ import annotations

FORMAT_VERSION = 1
CONFIG_FILE = "config.json"
MODEL_FILE = "model.safetensors"
TRAINING_FILE = "training.safetensors"
MANIFEST_FILE = "MANIFEST.json"

RUN_CHECKPOINTS = "checkpoints"
"""Where a run folder keeps its checkpoints."""


def step_name(step: int) -> str:
    """Name of the checkpoint of a step; names sort as steps do."""
    return f"{step:08d}"

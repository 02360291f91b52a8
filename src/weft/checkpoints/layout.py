"""Names of the files in a checkpoint, and the version of their format."""

from __future__ import annotations

FORMAT_VERSION = 1
CONFIG_FILE = "config.json"
MODEL_FILE = "model.safetensors"
TRAINING_FILE = "training.safetensors"

RUN_CHECKPOINTS = "checkpoints"
"""The subfolder of a run folder that contains its checkpoints."""

RUN_FILE = "run.json"
"""The file of a run folder that describes the run."""
RUN_ID = "run_id"
"""The key, among the facts of a checkpoint, of the ``id`` in the run's file."""


def step_name(step: int) -> str:
    """The folder name of the checkpoint of a step; names sort in the order of steps."""
    return f"{step:08d}"

ADAPTER_FILE = "weft_adapter.json"
ADAPTER_TENSORS = "adapter.safetensors"
PEFT_FILE = "adapter_config.json"
PEFT_TENSORS = "adapter_model.safetensors"
"""The files of folders that hold an adapter alone, Weft's and those of `peft`."""

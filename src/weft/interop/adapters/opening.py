"""Opening a folder that holds an adapter alone, in either format."""

from __future__ import annotations

from pathlib import Path

import torch

from weft.checkpoints.layout import PEFT_FILE
from weft.checkpoints.load import Loaded
from weft.core.model import ModelConfig
from weft.interop.adapters.own import read_own
from weft.interop.adapters.peft import read_peft


def load_adapted(folder: Path, *, base: str | None = None, device: torch.device | str = "cpu",
                 dtype: torch.dtype | None = None) -> Loaded:
    """The model under an adapter, with the adapter and the model's tokenizer.

    Args:
        folder: the adapter's.
        base: the model under it; None: the one that the folder names.
        device: where the model goes.
        dtype: of all weights; None: as the model's are stored.

    Raises:
        CheckpointError: a file is damaged or missing, or the model is another one.
        UnsupportedError: the model has no family that the adapter's format needs.
    """
    found = (read_peft if (folder / PEFT_FILE).is_file() else read_own)(folder, base=base, dtype=dtype)
    found.model.to(device)
    return found


def adapted_config(folder: Path) -> ModelConfig:
    """The configuration of `load_adapted`'s model, for which the weights are read too."""
    return load_adapted(folder).config

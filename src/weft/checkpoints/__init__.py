"""Checkpoints: a model, its tokenizer and what is needed to go on training, in one folder that is whole or absent."""

from __future__ import annotations

from weft.checkpoints.load import Loaded, load_checkpoint, read_training
from weft.checkpoints.locate import find_checkpoint
from weft.checkpoints.save import save_checkpoint

__all__ = ["Loaded", "find_checkpoint", "load_checkpoint", "read_training", "save_checkpoint"]

"""Checkpoints: a model, its tokenizer and the state of its training, in a folder that is complete or absent."""

from __future__ import annotations

from weft.checkpoints.load import Loaded, load_checkpoint, read_training
from weft.checkpoints.locate import find_checkpoint
from weft.checkpoints.save import save_checkpoint

__all__ = ["Loaded", "find_checkpoint", "load_checkpoint", "read_training", "save_checkpoint"]

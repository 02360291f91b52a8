"""Models of images for another size of image."""

from __future__ import annotations

from pathlib import Path

from weft.api.models import Model, load
from weft.checkpoints import save_checkpoint
from weft.models.resizing import resized


def resize_images(model: Model, out: str | Path, *, height: int, width: int) -> Path:
    """Write a checkpoint of a model for images of another size, whose learned positions are interpolated; see
    `weft.models.resizing.resized`. A run may start from it to adapt the weights.

    Args:
        model: the checkpoint of an image encoder.
        out: a new folder.
        height: of the new images, in pixels.
        width: of the new images, in pixels.

    Raises:
        UnsupportedError: the model has no patches.
        ConfigError: patches do not divide the new size.
        OccupiedError: ``out`` exists.
    """
    loaded = load(model)
    return save_checkpoint(out, resized(loaded.model, height, width), loaded.tokenizer, facts=loaded.facts)

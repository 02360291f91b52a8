"""A model of images for another size of image: its table of positions is interpolated, everything else stays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.core.errors import ConfigError, UnsupportedError
from weft.core.model import Model, parse_model
from weft.models.image_encoder import ImageEncoder
from weft.positions.learned import LearnedPosition

ON_GRID = ("axial_rope", "axial_sinusoidal")


@torch.no_grad()
def resized(model: Model, height: int, width: int) -> ImageEncoder:
    """The model for images of another height and width, with patches of the same size, so that it reads more or fewer
    of them (Dosovitskiy et al. 2021, section 3.2).

    A learned position is that of a place in the image: the table is interpolated on the grid of patches by cubic
    convolution, with corners of pixels aligned, and the class token's row is kept. Positions that are computed from the
    grid follow its number of columns.

    Args:
        model: an image encoder; it does not change.
        height: of the new images, in pixels.
        width: of the new images, in pixels.

    Raises:
        UnsupportedError: another kind of model.
        ConfigError: patches do not divide the new size.
    """
    if not isinstance(model, ImageEncoder):
        raise UnsupportedError(f"a model of kind {model.config.kind!r} has no patches of which an image may have more "
                               "or fewer.", where="model", remedy="Give an image encoder.")
    before = model.config.dump()
    columns = (model.input.grid[1], width // model.input.patch[1])
    plain = {key: value for key, value in before.items() if key != "context"}
    plain = _on_grid({**plain, "image": {**before["image"], "height": height, "width": width}}, *columns)
    position = model.embedding.position
    if isinstance(position, LearnedPosition):
        if position.offset or position.limit != model.input.tokens:
            raise ConfigError([f"model.position: a table of {position.limit} rows, while an image has "
                               f"{model.input.tokens} tokens, so its rows are not places of an image."])
        plain["position"] = {**before["position"], "max_length": None}
    made = parse_model(plain).build()
    assert isinstance(made, ImageEncoder), "the same kind of model"
    made.to(next(model.parameters()).dtype)
    tensors = model.state_dict()
    if isinstance(position, LearnedPosition):
        tensors["embedding.position.table"] = _interpolated(position.table, model, made)
    made.load_state_dict(tensors)
    return made.eval()


def _on_grid(value: Any, before: int, after: int) -> Any:
    """Plain data of a configuration in which positions on a grid of ``before`` columns have one of ``after``."""
    if isinstance(value, dict):
        found = {key: _on_grid(item, before, after) for key, item in value.items()}
        return {**found, "grid": [after]} if found.get("kind") in ON_GRID and found["grid"] == [before] else found
    return [_on_grid(item, before, after) for item in value] if isinstance(value, list) else value


def _interpolated(table: Tensor, before: ImageEncoder, after: ImageEncoder) -> Tensor:
    """The table of ``after``, from that of ``before``, in float32 or wider."""
    wide = table.to(torch.promote_types(table.dtype, torch.float32))
    kept, places = wide[:before.input.blanks], wide[before.input.blanks:]
    grid = places.reshape(1, *before.input.grid, -1).permute(0, 3, 1, 2)
    new = F.interpolate(grid, after.input.grid, mode="bicubic", align_corners=False)
    return torch.cat([kept, new.permute(0, 2, 3, 1).reshape(-1, places.shape[1])]).to(table.dtype)

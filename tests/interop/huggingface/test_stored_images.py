"""The numbers of models of images against those that transformers gave once (its version stands in the file)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from interop.huggingface.tiny_folders import change_config, weights
from weft import api
from weft.core.errors import CheckpointError, UnsupportedError
from weft.core.heads import outputs
from weft.core.span import WHOLE

STORED = json.loads((Path(__file__).parent / "stored_images.json").read_text(encoding="utf-8"))["cases"]


def write(folder: Path, name: str) -> None:
    """The folder of a case."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(STORED[name]["config"]))
    save_file(weights(STORED[name]["shapes"]), folder / "model.safetensors", metadata={"format": "pt"})


def found(folder: Path) -> torch.Tensor:
    """What the model gives for an image of sines."""
    model: Any = api.load(folder).model
    size = model.input.settings.size
    pixels = torch.arange(size[0] * size[1] * size[2]).sin().reshape(1, *size)
    with torch.no_grad():
        return outputs(model.head, model.vectors(model.images(pixels)).y, WHOLE)


@pytest.mark.parametrize("name", STORED)
def test_numbers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    wanted = torch.tensor(STORED[name]["found"])
    torch.testing.assert_close(found(tmp_path), wanted, atol=5e-5, rtol=0)


@pytest.mark.parametrize("name", STORED)
def test_a_checkpoint_of_weft_and_back_changes_no_bit(name: str, tmp_path: Path) -> None:
    write(tmp_path / "a", name)
    api.convert(tmp_path / "a", tmp_path / "b", to="weft")
    done = api.convert(tmp_path / "b", tmp_path / "c", to="hf", max_shard_size="2KB")
    assert done.family == "vit" and done.difference == 0
    assert torch.equal(found(tmp_path / "c"), found(tmp_path / "a"))
    assert api.load(tmp_path / "c").config == api.load(tmp_path / "a").config


@pytest.mark.parametrize(("values", "message"), [
    ({"image_size": 9}, r"patch_size: 4 does not divide image_size 9."),
    ({"image_size": [8, 8, 8]}, r"image_size: \[8, 8, 8\] is neither a positive whole number nor two."),
    ({"problem_type": "multi_label_classification"}, r"only a head for two or more classes that exclude each other"),
    ({"image_size": 12}, r"vit.embeddings.position_embeddings: shape \[1, 5, 12\] where the configuration gives "
                         r"\[1, 10, 12\]."),
])
def test_files_that_cannot_be_read(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, "vit-classes")
    change_config(tmp_path, **values)
    with pytest.raises(CheckpointError, match=message):
        api.load(tmp_path)


def test_a_key_that_is_not_known_is_refused_where_that_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "vit-classes")
    change_config(tmp_path, mask_ratio=0.5)
    api.load(tmp_path)
    with pytest.raises(CheckpointError, match=r"mask_ratio: "):
        api.load(tmp_path, strict=True)


def test_a_model_that_scales_its_pixels_does_not_fit(tmp_path: Path) -> None:
    from weft.checkpoints import save_checkpoint
    from weft.core.model import parse_model

    write(tmp_path, "vit-classes")
    config = api.load(tmp_path).config
    model = parse_model({**config.dump(), "image": {"height": 8, "width": 8, "channels": 3}}).build()
    save_checkpoint(tmp_path / "scaled", model, None)
    with pytest.raises(UnsupportedError, match=r"image.pixel_scaling: 'min_max' where the family has 'none'"):
        api.convert(tmp_path / "scaled", tmp_path / "out", to="hf")

"""Families of models of images give transformers' numbers, in both directions, with gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from against_transformers.tiny import TOLERANCE, Case, build, image_cases, saved
from weft import api
from weft.core.heads import outputs
from weft.core.span import WHOLE

NAMED = [pytest.param(case, id=case.name) for case in image_cases()]


def ours(folder: Path, pixels: Tensor) -> Tensor:
    model: Any = api.load(folder).model
    return outputs(model.head, model.vectors(model.images(pixels)).y, WHOLE)


def theirs(model: Any, pixels: Tensor) -> Tensor:
    found = model(pixels)
    result: Tensor = found.last_hidden_state if type(model).__name__.endswith("Model") else found.logits
    return result


def pixels_of(folder: Path, *, grad: bool = False) -> Tensor:
    model: Any = api.load(folder).model
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, *model.input.settings.size, generator=generator).requires_grad_(grad)


@pytest.mark.parametrize("case", NAMED)
def test_values_and_gradients_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    model = saved(case, tmp_path)
    a, b = pixels_of(tmp_path, grad=True), pixels_of(tmp_path, grad=True)
    own, other = ours(tmp_path, a), theirs(model, b)
    torch.testing.assert_close(own, other, atol=TOLERANCE, rtol=0)
    weight = torch.randn(own.shape, generator=torch.Generator().manual_seed(2))
    (own * weight).sum().backward()
    (other * weight).sum().backward()
    assert a.grad is not None and b.grad is not None
    # Relative to the largest gradient, which sums over every patch and layer: 1e-6 of rounding in each of some dozens.
    torch.testing.assert_close(a.grad, b.grad, atol=TOLERANCE * float(b.grad.abs().max()), rtol=0)


@pytest.mark.parametrize("case", NAMED)
def test_what_weft_writes_is_what_transformers_wrote(case: Case, tmp_path: Path) -> None:
    """Through a checkpoint of Weft and back: the same class, the same tensors to the bit, the same numbers."""
    model = saved(case, tmp_path / "theirs")
    api.convert(tmp_path / "theirs", tmp_path / "ours", to="weft")
    done = api.convert(tmp_path / "ours", tmp_path / "back", to="hf", max_shard_size="4KB")
    assert done.family == "vit" and done.foreign is not None and done.foreign < TOLERANCE
    again, info = type(model).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert all(name.startswith("pooler.") for name in info["missing_keys"]), "only the map that no hidden vector needs"
    assert not info["unexpected_keys"] and not info["mismatched_keys"]
    for name, tensor in model.state_dict().items():
        assert name in info["missing_keys"] or torch.equal(again.state_dict()[name], tensor), name
    assert again.config.id2label == model.config.id2label
    assert api.load(tmp_path / "back").config == api.load(tmp_path / "theirs").config


def test_a_bare_model_s_pooler_and_prefixes_of_names_are_read(tmp_path: Path) -> None:
    """A file of ViTModel with the pooler, and the same tensors under the names of the model with classes."""
    case = next(case for case in image_cases() if case.model == "ViTModel")
    saved(case, tmp_path)
    file, wanted = tmp_path / "model.safetensors", ours(tmp_path, pixels_of(tmp_path))
    tensors = load_file(file)
    assert "pooler.dense.weight" in tensors
    save_file({f"vit.{name}": tensor for name, tensor in tensors.items()}, file, metadata={"format": "pt"})
    torch.testing.assert_close(ours(tmp_path, pixels_of(tmp_path)), wanted, rtol=0, atol=0)


def test_two_classes_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """ImageNet has two classes called crane, and a classifier's labels are different."""
    case = image_cases()[0]
    build(case).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    raw["id2label"] = {"0": "crane", "1": "crane", "2": "owl"}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert api.load(tmp_path).config.labels() == ("crane (0)", "crane (1)", "owl")


@pytest.mark.parametrize("size", [(16, 16), (8, 12)])
def test_positions_are_interpolated_as_in_transformers(size: tuple[int, int], tmp_path: Path) -> None:
    model = saved(image_cases()[0], tmp_path / "theirs")
    api.resize_images(tmp_path / "theirs", tmp_path / "ours", height=size[0], width=size[1])
    pixels = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(3))
    wanted = model(pixels, interpolate_pos_encoding=True).logits
    torch.testing.assert_close(ours(tmp_path / "ours", pixels), wanted, atol=TOLERANCE, rtol=0)

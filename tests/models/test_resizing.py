"""Image encoders for another size of image: positions interpolated by cubic convolution, written out; refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from by_hand import randomise
from weft.checkpoints import save_checkpoint
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.model import parse_model
from weft.models.image_encoder import ImageEncoder, resized

ATTENTION = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
BASE: dict[str, Any] = {"kind": "image_encoder", "image": {"height": 6, "width": 8}, "patch": [2, 2], "d_model": 8,
                        "blocks": [{"kind": "pre", "layers": [ATTENTION]}]}


def build(**fields: Any) -> ImageEncoder:
    found = parse_model({**BASE, **fields}).build().double()
    assert isinstance(found, ImageEncoder)
    randomise(found)
    return found


def kernel(distance: float) -> float:
    """Cubic convolution with a = -0.75 (Keys 1981, equation 4, for another a)."""
    a, x = -0.75, abs(distance)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


def weights(before: int, after: int) -> np.ndarray:
    """[after,before]: what each old place gives to each new one; places beyond the edge are those of the edge."""
    found = np.zeros((after, before))
    for new in range(after):
        at = (new + 0.5) * before / after - 0.5
        for near in range(int(np.floor(at)) - 1, int(np.floor(at)) + 3):
            found[new, min(max(near, 0), before - 1)] += kernel(at - near)
    return found


def test_the_table_is_interpolated_on_the_grid_and_the_class_token_kept() -> None:
    model = build()
    made = resized(model, 10, 12)
    table, found = (each.state_dict()["embedding.position.table"].numpy() for each in (model, made))
    wanted = np.einsum("ry,cx,yxd->rcd", weights(3, 5), weights(4, 6), table[1:].reshape(3, 4, -1))
    np.testing.assert_allclose(found[1:], wanted.reshape(30, -1), rtol=0, atol=1e-13)
    np.testing.assert_array_equal(found[0], table[0])
    assert made.config.context == 31 and made.limit() == 31
    for name, tensor in model.state_dict().items():
        assert name == "embedding.position.table" or torch.equal(made.state_dict()[name], tensor)


def test_the_same_size_changes_nothing() -> None:
    model = build()
    pixels = torch.randn(2, 1, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    again = resized(model, 6, 8)
    torch.testing.assert_close(again(again.images(pixels)), model(model.images(pixels)), rtol=0, atol=1e-14)


def test_positions_on_a_grid_follow_its_columns() -> None:
    turned = {**ATTENTION, "position": {"kind": "axial_rope", "grid": [4], "first": 1}}
    model = build(position={"kind": "axial_sinusoidal", "grid": [4], "first": 1},
                  blocks=[{"kind": "pre", "layers": [turned]}])
    plain = resized(model, 6, 4).config.dump()
    assert plain["position"]["grid"] == [2] and plain["blocks"][0]["layers"][0]["position"]["grid"] == [2]


def test_a_checkpoint_is_written_that_a_run_may_start_from(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "small", build().float(), None)
    weft.resize_images(tmp_path / "small", tmp_path / "large", height=12, width=8)
    assert weft.load(tmp_path / "large").model.limit() == 25


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"patch: patches of 2 pixels do not divide a height of 7. Choose a divisor"):
        resized(build(), 7, 8)
    with pytest.raises(ConfigError, match=r"model.position: a table of 40 rows, while an image has 13 tokens, so its"):
        resized(build(position={"kind": "learned", "max_length": 40}), 8, 8)
    dense = parse_model({"kind": "dense", "image": {"height": 2, "width": 2}, "widths": [2]}).build()
    with pytest.raises(UnsupportedError, match=r"a model of kind 'dense' has no patches of which an image may have"):
        resized(dense, 4, 4)

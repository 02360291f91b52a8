"""The image encoder against a composition of the oracles; patches, scaling, positions on a grid; what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import fused_attention, randomise, require_agreement
from oracles import feedforward, norms, rope
from weft.core.config import parse
from weft.core.errors import ConfigError, InputError
from weft.core.model import EncoderInputs
from weft.core.span import Span
from weft.models.image_encoder import ImageEncoder, ImageEncoderConfig
from weft.models.image_inputs import ImageInput, ImageSettings

D, HEADS = 8, 2
ATTENTION = {"kind": "attention", "n_heads": HEADS, "mask": "bidirectional", "bias": "none"}
MLP = {"kind": "mlp", "d_ff": 12, "activation": "gelu"}
IMAGE = {"channels": 2, "height": 4, "width": 6}
BASE: dict[str, Any] = {"image": {**IMAGE, "pixel_scaling": "none"}, "patch": [2, 3], "d_model": D, "norm": "layernorm",
                        "blocks": [{"kind": "pre", "layers": [ATTENTION, MLP]}]}


def build(**fields: Any) -> ImageEncoder:
    found = parse(ImageEncoderConfig, {**BASE, **fields}).build().double().eval()
    randomise(found)
    return found


def pixels(rows: int = 1, seed: int = 0, *, channels: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, channels, 4, 6, generator=generator, dtype=torch.float64)


def patches_by_hand(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Patches of an image [C,H,W] one by one: its rows and columns of pixels, channel by channel."""
    _, tall, wide = image.shape
    return np.array([[image[c, top + y, left + x] for c in range(len(image)) for y in range(height)
                      for x in range(width)]
                     for top in range(0, tall, height) for left in range(0, wide, width)])


def test_patches_are_cut_row_by_row_behind_a_blank() -> None:
    image = pixels()
    wanted = patches_by_hand(image[0].numpy(), 2, 3)
    found = build().images(image).patches
    assert found is not None and found.shape == (1, 5, 12)
    assert found[0, 0].abs().sum() == 0
    np.testing.assert_array_equal(found[0, 1:].numpy(), wanted)
    bare = build(class_token=False).images(image).patches
    assert bare is not None
    np.testing.assert_array_equal(bare[0].numpy(), wanted)


def test_it_is_the_paper_s_equations() -> None:
    """z_0 = [class; patches E] + positions, blocks with the norm before each layer, and a norm after the last."""
    encoder, image = build(), pixels()
    assert [name for name, _ in encoder.named_parameters()][:4] == [
        "embedding.first", "embedding.projection.weight", "embedding.projection.bias", "embedding.position.table"]
    cells = patches_by_hand(image[0].numpy(), 2, 3)

    def vit(*weights: Any) -> Any:
        first, projection, bias, table, qkv, out, up, up_bias, down, down_bias, w1, b1, w2, b2, w3, b3 = weights
        x = np.concatenate([first[None], cells @ projection.T + bias]) + table
        x = x + fused_attention(HEADS, HEADS, D // HEADS)(norms.layernorm(x, w1, b1), qkv, out)
        x = x + feedforward.mlp(norms.layernorm(x, w2, b2), up, down, up_bias, down_bias, "gelu")
        return norms.layernorm(x, w3, b3)

    require_agreement(encoder(encoder.images(image))[0], list(encoder.parameters()), vit)


def test_the_blank_of_the_class_token_is_not_read() -> None:
    encoder = build()
    given = encoder.images(pixels()).patches
    assert given is not None
    spoilt = given.clone().requires_grad_()
    with torch.no_grad():
        spoilt[:, 0] = torch.nan
    y = encoder(EncoderInputs(patches=spoilt))
    assert_close(y, encoder(EncoderInputs(patches=given)), rtol=0, atol=0)
    y.sum().backward()
    assert spoilt.grad is not None and spoilt.grad[:, 0].abs().sum() == 0
    assert all(parameter.grad is None or bool(parameter.grad.isfinite().all()) for parameter in encoder.parameters())


def test_images_of_fewer_patches_in_one_call() -> None:
    encoder, given = build(position="none"), pixels(2)
    patches = encoder.images(given).patches
    assert patches is not None
    y = encoder(EncoderInputs(patches=patches), Span(count=torch.tensor([5, 3])))
    assert_close(y[1, :3], encoder(EncoderInputs(patches=patches[1:, :3]))[0], rtol=1e-12, atol=1e-13)
    assert y[1, 3:].abs().sum() == 0


def scaled(scaling: str, per: str, values: Tensor) -> tuple[ImageInput, Tensor]:
    settings = ImageSettings.model_validate({**IMAGE, "pixel_scaling": scaling, "per": per})
    made = ImageInput(settings, (2, 3), blanks=1).double()
    made.fit(values)
    cut = made.cut(values).patches
    assert cut is not None
    return made, made(cut, torch.float64)[:, 1:]


@pytest.mark.parametrize("per", ["channel", "feature"])
def test_scalings_are_those_of_their_definitions(per: str) -> None:
    values = pixels(7) * torch.tensor([1.0, 5.0])[:, None, None] + 3
    cells = np.array([patches_by_hand(image.numpy(), 2, 3) for image in values]).reshape(-1, 12)
    groups = [np.arange(6), np.arange(6, 12)] if per == "channel" else [np.array([i]) for i in range(12)]
    for scaling in ("min_max", "standard"):
        _, found = scaled(scaling, per, values)
        for group in groups:
            own = cells[:, group]
            wanted = ((own - own.min()) / (own.max() - own.min()) if scaling == "min_max" else
                      (own - own.mean()) / own.std())
            # A reciprocal and a product in place of a division: two roundings of numbers up to 3.
            np.testing.assert_allclose(found.reshape(-1, 12)[:, group].numpy(), wanted, rtol=0, atol=1e-14)


def test_a_value_that_never_changes_becomes_zero() -> None:
    values = pixels(5)
    values[:, 1] = 4.0
    for scaling in ("min_max", "standard"):
        _, found = scaled(scaling, "channel", values)
        assert bool(found.isfinite().all()) and found[..., 6:].abs().sum() == 0 and found[..., :6].abs().sum() > 0


def test_bytes_are_scaled_as_numbers_and_the_scaling_is_saved() -> None:
    encoder = build(image={**IMAGE, "pixel_scaling": "min_max"}).float()
    values = (pixels(3) * 40 + 128).clamp(0, 255).to(torch.uint8)
    encoder.fit_scaling(values)
    assert {"input.shift", "input.factor"} <= set(encoder.state_dict())
    other = build(image={**IMAGE, "pixel_scaling": "min_max"}).float()
    other.load_state_dict(encoder.state_dict())
    assert_close(other(other.images(values)), encoder(encoder.images(values.float())), rtol=0, atol=0)
    assert "input.shift" not in build().state_dict()


def test_half_precision_keeps_the_scaling() -> None:
    encoder = build(image={**IMAGE, "pixel_scaling": "standard"}).float().bfloat16()
    assert encoder.input.shift is not None and encoder.input.shift.dtype == torch.float32
    assert encoder(encoder.images(pixels())).dtype == torch.bfloat16


def test_positions_on_the_grid_are_added_behind_the_class_token() -> None:
    """Sines and cosines of the row, then of the column; nothing for the class token."""
    encoder = build(position={"kind": "axial_sinusoidal", "grid": [2], "first": 1, "base": 50.0})
    plain = build(position="none")
    found = encoder.embedding.position.embed(torch.zeros(1, 5, D, dtype=torch.float64),
                                             Span().resolve(None, torch.zeros(1, 5, D)).ticks)[0]
    wanted = np.zeros((5, D))
    for place in range(4):
        for axis, at in enumerate((place // 2, place % 2)):
            for i in range(2):
                wanted[1 + place, 4 * axis + i] = np.sin(at * 50.0 ** (-i / 2))
                wanted[1 + place, 4 * axis + 2 + i] = np.cos(at * 50.0 ** (-i / 2))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=1e-14)
    assert not plain.embedding.position.acts_on


def test_rotations_on_the_grid_begin_behind_the_class_token() -> None:
    scheme = parse(ImageEncoderConfig, {**BASE, "blocks": [{"kind": "pre", "layers": [
        {**ATTENTION, "position": {"kind": "axial_rope", "grid": [2], "first": 1, "base": 50.0}}]}]}).build().double()
    position: Any = scheme.stack.get_submodule("layers.0.layers.0.position")
    x = torch.randn(1, 5, 1, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = position.rotate(x, Span().resolve(None, x[..., 0, :]).ticks)[0, :, 0].numpy()
    theta, places = np.array([1.0]), np.array([0, 0, 1, 2, 3])
    for axis, at in enumerate((places // 2, places % 2)):
        at = np.where(np.arange(5) == 0, 0, at).astype(float)
        features = slice(2 * axis, 2 * axis + 2)
        wanted = rope.rope_interleaved(x[0, :, 0, features].numpy(), at, theta)
        np.testing.assert_allclose(found[:, features], wanted, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("inputs", "message"), [
    (EncoderInputs(), r"inputs.patches: missing: this model reads patches of 12 values. Give shape \[B,S,12\], or"),
    (EncoderInputs(patches=torch.zeros(1, 2, 3)), r"inputs.patches: shape \[1, 2, 3\]: this model reads patches of 12"),
    (EncoderInputs(tokens=torch.zeros(1, 2).long()), r"inputs.tokens: this model reads patches of images, not tokens."),
])
def test_inputs_that_it_does_not_read(inputs: EncoderInputs, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()(inputs)


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(InputError, match=r"images: images of shape \[1, 1, 4, 6\], while this model reads 2 x 4 x 6. "
                                         r"Give channels, height and width 2 x 4 x 6, or build the model for another"):
        build().images(pixels(channels=1))


@pytest.mark.parametrize(("fields", "message"), [
    ({"patch": [3, 3]}, r"patch: patches of 3 pixels do not divide a height of 4. Choose a divisor of 4."),
    ({"head": {"kind": "pooled", "pool": "mean", "n_classes": 2}}, r"head: pool: mean, which would read the class "
     r"token with the patches. Give pool: first, or class_token: false."),
    ({"blocks": []}, r"blocks: a model without blocks does nothing."),
    ({"vocab_size": 5}, r"vocab_size: Input should be less than or equal to 0"),
])
def test_configurations_that_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(ImageEncoderConfig, {**BASE, **fields})


@pytest.mark.parametrize(("fields", "message"), [
    ({"position": "alibi"}, r"position: 'alibi' acts on scores, so it has no place outside attention."),
    ({"position": {"kind": "binary", "digits": 3}}, r"position: 'binary' is not added to embeddings. Put"),
    ({"position": {"kind": "axial_sinusoidal", "grid": [2]}, "d_model": 6}, r"position.grid: 6 features do not make as "
     r"many pairs of sine and cosine for each of 2 axes. Choose a d_model among the multiples of 4."),
    ({"position": {"kind": "axial_sinusoidal", "grid": [0]}}, r"position.grid: an axis of 0 tokens. Give positive"),
])
def test_positions_that_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**fields)


def test_tokens_of_an_image_are_counted() -> None:
    assert parse(ImageEncoderConfig, BASE).context == 5
    assert parse(ImageEncoderConfig, {**BASE, "class_token": False}).context == 4
    assert build().limit() == 5

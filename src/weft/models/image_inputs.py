"""The settings that models of images share: the size of an image, its patches, and the scaling of its pixels."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.declarations import Declared
from weft.core.errors import InputError
from weft.core.model import EncoderInputs
from weft.core.part import Part
from weft.core.part_config import Settings


class ImageSettings(Settings):
    """The images that a model reads.

    Attributes:
        height: height of an image, in pixels.
        width: width of an image, in pixels.
        channels: values of a pixel.
        pixel_scaling: how pixels are scaled, by numbers that are measured once on the images to train on, kept with the
            weights, and applied wherever the model runs. ``none``: pixels as they are; ``min_max``: to [0,1] from the
            smallest to the largest value; ``standard``: to mean 0 and standard deviation 1 (of the population). A
            value that never changes becomes 0.
        per: what is measured together: all values of a ``channel``, or each ``feature``, one of the numbers of a
            patch, by itself (of a model that reads an image as one vector: each pixel).
    """

    height: int = Field(gt=0)
    width: int = Field(gt=0)
    channels: int = Field(default=1, gt=0)
    pixel_scaling: Literal["none", "min_max", "standard"] = "min_max"
    per: Literal["channel", "feature"] = "channel"

    @property
    def size(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return self.channels, self.height, self.width


class ImageInput(Part):
    """Cuts images into patches and scales their values: y = (x - shift) factor.

    A patch [P] lists its values by channel, row and column, P = channels x patch height x patch width; the patches of
    an image follow each other row by row. ``shift`` and ``factor`` [P] are measured by `fit` and kept in float32 or
    wider.

    Args:
        patch: height and width of a patch, in pixels, which divide those of the image.
        blanks: places before the patches of each image that are left to the model: 1 for a class token.
    """

    def __init__(self, settings: ImageSettings, patch: tuple[int, int], blanks: int = 0) -> None:
        super().__init__()
        self.settings, self.patch, self.blanks = settings, patch, blanks
        self.features = settings.channels * patch[0] * patch[1]
        plain = settings.pixel_scaling == "none"
        self.register_buffer("shift", None if plain else torch.zeros(self.features))
        self.register_buffer("factor", None if plain else torch.ones(self.features))
        self.shift: Tensor | None
        self.factor: Tensor | None

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.settings.height // self.patch[0], self.settings.width // self.patch[1]

    @property
    def tokens(self) -> int:
        """Places of an image: its patches and the blanks before them."""
        return self.grid[0] * self.grid[1] + self.blanks

    def declares(self) -> Declared:
        return Declared(exact=() if self.shift is None or self.factor is None else (self.shift, self.factor))

    def cut(self, pixels: Tensor) -> EncoderInputs:
        """Images [B,C,H,W] as patches [B,S,P], with zeros in the blank places; whole numbers become float32. Raises
        `InputError`: images of another size."""
        if pixels.dim() != 4 or tuple(pixels.shape[1:]) != self.settings.size:
            wanted = " x ".join(map(str, self.settings.size))
            raise InputError(f"images of shape {list(pixels.shape)}, while this model reads {wanted}.", where="images",
                             remedy=f"Give channels, height and width {wanted}, or build the model for another size.")
        (rows, columns), (height, width) = self.grid, self.patch
        values = pixels if pixels.is_floating_point() else pixels.float()
        x = values.reshape(-1, self.settings.channels, rows, height, columns, width)
        patches = x.permute(0, 2, 4, 1, 3, 5).reshape(len(pixels), rows * columns, self.features)
        blank = patches.new_zeros(len(pixels), self.blanks, self.features)
        return EncoderInputs(patches=torch.cat([blank, patches], dim=1))

    def forward(self, patches: Float[Tensor, "B S P"], dtype: torch.dtype) -> Float[Tensor, "B S P"]:
        """Patches, scaled, in ``dtype``."""
        if self.shift is None or self.factor is None:
            return patches.to(dtype)
        return ((patches.to(self.shift.dtype) - self.shift) * self.factor).to(dtype)

    @torch.no_grad()
    def fit(self, pixels: Tensor) -> None:
        """Measure ``shift`` and ``factor`` on images [n,C,H,W], in float64."""
        if self.shift is None or self.factor is None:
            return
        patches = self.cut(pixels).patches
        assert patches is not None, "images are cut into patches"
        x = patches[:, self.blanks:].double()
        shift, spread = self._measured(x.reshape(-1, self.features))
        constant = spread == 0
        self.shift.copy_(shift)
        self.factor.copy_(torch.where(constant, 1.0, 1.0 / torch.where(constant, 1.0, spread)))

    def _measured(self, x: Float[Tensor, "n P"]) -> tuple[Tensor, Tensor]:
        """Shift and spread of each feature, [P]."""
        area = self.patch[0] * self.patch[1]
        if self.settings.per == "channel":
            x = x.reshape(len(x), self.settings.channels, area).transpose(1, 2).reshape(-1, self.settings.channels)
        if self.settings.pixel_scaling == "min_max":
            low, high = x.amin(0), x.amax(0)
            found = low, high - low
        else:
            found = x.mean(0), x.std(0, correction=0)
        return found if self.settings.per == "feature" else (found[0].repeat_interleave(area),
                                                             found[1].repeat_interleave(area))


def patches_of(inputs: EncoderInputs, features: int) -> Float[Tensor, "B S P"]:
    """The patches of a call of a model that reads nothing else. Raises `InputError`: there are none, they have another
    number of features, or there are other inputs."""
    for name in inputs.given():
        if name != "patches":
            raise InputError(f"this model reads patches of images, not {name}.", where=f"inputs.{name}",
                             remedy="Leave it out.")
    patches = inputs.patches
    if patches is None or patches.dim() != 3 or patches.shape[2] != features:
        found = "missing" if patches is None else f"shape {list(patches.shape)}"
        raise InputError(f"{found}: this model reads patches of {features} values.", where="inputs.patches",
                         remedy=f"Give shape [B,S,{features}], or images through the model's `images`.")
    return patches

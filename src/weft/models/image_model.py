"""`ImageModel`: base of the models that read images, and of their configurations."""

from __future__ import annotations

from abc import ABC
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from weft.core.config import PartField
from weft.core.model import Encoder, EncoderInputs, ModelConfig
from weft.heads.base import ClassifierConfig, HeadConfig
from weft.models.image_inputs import ImageInput, ImageSettings


class ImageModelConfig(ModelConfig):
    """Base of the configurations of models of images.

    Attributes:
        vocab_size: 0, since there are no tokens.
        image: the images that it reads.
        head: for a task; None: none.
    """

    group: ClassVar[str] = "encoder"
    reads_tokens: ClassVar[bool] = False

    vocab_size: int = Field(default=0, ge=0, le=0)
    image: ImageSettings
    head: Annotated[HeadConfig, PartField("head")] | None = None

    def labels(self) -> tuple[str, ...]:
        return self.head.names if isinstance(self.head, ClassifierConfig) else ()


class ImageModel(Encoder, ABC):
    """A model of images, which it reads as rows of patches.

    Attributes:
        input: cuts images into patches and scales them.
    """

    input: ImageInput

    def reads(self) -> dict[str, int]:
        return {"patches": self.input.features}

    def images(self, pixels: Tensor) -> EncoderInputs:
        """Images [B,C,H,W] as the model's inputs, with unscaled pixels.

        Raises:
            InputError: images of another size.
        """
        return self.input.cut(pixels)

    def fit_scaling(self, pixels: Tensor) -> None:
        """Measure the scaling of pixels on the images to train on, [n,C,H,W]."""
        self.input.fit(pixels.to(next(self.parameters()).device))

    def dtype(self) -> torch.dtype:
        """The dtype that it computes in: that of its first parameter, a matrix or, where a rewrite keeps matrices in
        fewer bits, a bias."""
        return next(self.parameters()).dtype

"""The common base of models of images: their configuration's images and head, and the input that cuts and scales."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from weft.core.config import PartField
from weft.core.images import ImageModel
from weft.core.model import EncoderInputs, ModelConfig
from weft.heads.base import ClassifierConfig, HeadConfig
from weft.models.image_inputs import ImageInput, ImageSettings


class ImageModelConfig(ModelConfig):
    """Base of the configurations of models of images.

    Attributes:
        vocab_size: 0 ids, since there are no tokens.
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


class PatchedModel(ImageModel):
    """Base of models with an `ImageInput`.

    Attributes:
        input: cuts images into patches and scales them.
    """

    input: ImageInput

    @property
    def image_size(self) -> tuple[int, int, int]:
        return self.input.settings.size

    @property
    def image_tokens(self) -> int:
        return self.input.tokens

    def reads(self) -> dict[str, int]:
        return {"patches": self.input.features}

    def images(self, pixels: Tensor) -> EncoderInputs:
        return self.input.cut(pixels)

    def fit_scaling(self, pixels: Tensor) -> None:
        self.input.fit(pixels.to(next(self.parameters()).device))

    def dtype(self) -> torch.dtype:
        """The dtype that it computes in: that of its first parameter, a matrix or, where a rewrite keeps matrices in
        fewer bits, a bias."""
        return next(self.parameters()).dtype

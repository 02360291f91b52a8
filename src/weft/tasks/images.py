"""The common base of tasks on images: reading, splitting and batching them by a run's settings."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from pydantic import Field
from torch import Tensor

from weft.core.errors import ConfigError, DataError
from weft.core.images import ImageModel
from weft.core.model import Model
from weft.data.batch_source import RowBatches
from weft.data.duplicates import Repeated
from weft.data.images import Images, read_images
from weft.data.settings import DataSettings
from weft.tasks.base import Count, Rows, Task, TaskConfig, TaskDeclared
from weft.tasks.protocols import FitsInputs
from weft.tasks.token_streams import HeldOut, Material
from weft.tokenizers import Tokenizer
from weft.tokenizers.byte import NoTokenizer
from weft.tokenizers.config import ByteTokenizerConfig, TokenizerConfig

OF_TEXT = ("max_bytes", "text_field", "prompt_field", "documents", "packing", "split_by")
"""Settings of data that images do not have."""


class ImageTaskConfig(TaskConfig):
    """Base of the configurations of tasks on images.

    Attributes:
        images: the number of images to train on, drawn at random by ``data.split_seed``; None: all.
    """

    images: int | None = Field(default=None, gt=0)

    def declares(self) -> TaskDeclared:
        return TaskDeclared(unit="image")


class Parts(NamedTuple):
    """The images of a run: to train on, and held out; their description and hash."""

    train: Images
    validation: Images
    corpus: str
    corpus_sha256: str


def image_parts(data: DataSettings, images: int | None) -> Parts:
    """Read and split the images of a run.

    Raises:
        DataError: they cannot be used.
        ConfigError: a setting for text is given.
    """
    usual = DataSettings()
    if problems := [f"data.{name}: {getattr(data, name)!r}, a setting of text, while this task reads images. Leave it "
                    "out; task.images limits their number." for name in OF_TEXT
                    if getattr(data, name) != getattr(usual, name)]:
        raise ConfigError(problems)
    if data.path is None:
        raise DataError("this task reads images, and there is no path to them.", where="data.path",
                        remedy="Give an .npz, .npy or IDX file, or a folder of PNG files for each class.")
    if not isinstance(data.path, str):
        raise DataError("a list of paths, while images are read from one file or folder.", where="data.path",
                        remedy="Give one path.")
    whole = read_images(data.path)
    corpus, digest = whole.describe(), whole.sha256
    if data.validation_path is None:
        assert data.validation is not None, "there is a share where there is no path"
        train, held = whole.split(data.validation, seed=data.split_seed)
    else:
        train, held = whole, read_images(data.validation_path)
        corpus, digest = f"{corpus}; validation {held.describe()}", f"{digest}{held.sha256}"
    limited = train if images is None else train.limited(images, seed=data.split_seed)
    return Parts(limited, held, corpus, digest)


@dataclass(frozen=True, eq=False)
class ImageExamples:
    """Images with the index of the class of each; 0 for a task without classes."""

    images: Images
    ids: Int64[np.ndarray, " n"]

    @property
    def repeated(self) -> Repeated | None:
        """Not counted for images."""
        return None

    def __len__(self) -> int:
        """Number of images."""
        return len(self.images)


class ImageColumns(NamedTuple):
    """Images [B,C,H,W] with unscaled pixels, the index of the class of each [B], and the stage of training that they
    are for (`ImageTask.stage`)."""

    pixels: Tensor
    labels: Tensor
    stage: int = 0


T = TypeVar("T", bound=ImageTaskConfig)


class ImageTask(Task[T, ImageExamples, ImageColumns], FitsInputs):
    """Base of tasks on images."""

    @abstractmethod
    def ids(self, images: Images) -> Int64[np.ndarray, " n"]:
        """The index of the class of each image."""

    def problems(self, model: Model) -> list[str]:
        if not isinstance(model, ImageModel):
            return [f"model: a model of kind {model.config.kind!r} reads no images. Give one that does, such as "
                    "image_encoder or dense."]
        found, tokens = super().problems(model), model.image_tokens
        if self.settings.context < tokens:
            found.append(f"training.context: {self.settings.context} tokens, while an image has {tokens}. Leave it "
                         "out, and model.context too.")
        return found

    def material(self, data: DataSettings, tokenizer: TokenizerConfig) -> Material[ImageExamples]:
        if tokenizer != ByteTokenizerConfig() and not isinstance(tokenizer.from_file(), NoTokenizer):
            raise ConfigError([f"tokenizer: {tokenizer.kind}, while this task reads images. Leave it out."])
        parts = image_parts(data, self.config.images)
        train, validation = (ImageExamples(each, self.ids(each)) for each in (parts.train, parts.validation))
        return Material(parts.corpus, parts.corpus_sha256, NoTokenizer(), train, validation)

    def held_out(self, data: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> ImageExamples:
        if part == "test" and data.test_path is None:
            raise DataError("the run has no test images.", where="data.test_path",
                            remedy="Name them in the run's configuration.")
        if part == "test" or data.validation_path is not None:
            found = read_images(str(data.test_path if part == "test" else data.validation_path))
        else:
            found = image_parts(data, None).validation
        return ImageExamples(found, self.ids(found))

    def begin(self, model: Model, examples: ImageExamples) -> None:
        require_size(image_model(model), examples.images)
        # A copy, for arrays from a file cannot be written to, and PyTorch knows no tensors that cannot.
        image_model(model).fit_scaling(torch.tensor(examples.images.pixels))

    def batches(self, examples: ImageExamples) -> RowBatches[Rows[ImageColumns]]:
        order = self.settings.order(len(examples), examples.images.name)

        def lay(chosen: Int64[np.ndarray, " B"], share: slice, step: int) -> Rows[ImageColumns]:
            columns = image_columns(examples, chosen[share])._replace(stage=self.stage(step))
            return Rows(columns, Count(len(columns.labels), len(columns.labels)))

        return RowBatches(order, lay, tokens=float(order.rows * self.settings.context))

    def stage(self, step: int) -> int:
        """The stage of training of the batch of a step, for tasks with several: a plain number, for which the loss is
        compiled by itself."""
        return 0


def image_model(model: Model) -> ImageModel:
    """``model``, of which `ImageTask.problems` has found that it reads images."""
    assert isinstance(model, ImageModel), "a model that does not fit is refused before"
    return model


def require_size(model: ImageModel, images: Images) -> None:
    """Refuse images of another size than the model's. Raises `DataError`: they are of another size."""
    if images.size != model.image_size:
        given, wanted = (" x ".join(map(str, size)) for size in (images.size, model.image_size))
        raise DataError(f"images of {given} (channels, height, width), while model.image has {wanted}.",
                        where=images.name, remedy="Correct model.image, or bring the images to its size.")


def image_columns(examples: ImageExamples, places: Int64[np.ndarray, " B"]) -> ImageColumns:
    """The images at these indices, in order."""
    return ImageColumns(torch.from_numpy(np.ascontiguousarray(examples.images.pixels[places])),
                        torch.from_numpy(examples.ids[places]))

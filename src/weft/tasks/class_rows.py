"""Tasks on rows whose one answer is their class: ListOps, Pathfinder, images pixel by pixel."""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np
from jaxtyping import Int64
from pydantic import Field, model_validator

from weft.core.config import rule
from weft.core.errors import ConfigError, DataError
from weft.core.part_config import About
from weft.core.registry import register
from weft.data.generated import AnsweredRows, ListOps, Pathfinder, RowExamples
from weft.data.generated.generator import Draws
from weft.data.generated.listops import LEAST
from weft.data.generated.pathfinder import LEVELS, look_of
from weft.data.images import Images, read_images
from weft.data.settings import DataSettings
from weft.tasks.images import image_parts
from weft.tasks.protocols import HasClasses
from weft.tasks.rows import GeneratedTaskConfig, Part, RowTaskConfig

PARTED = 4
"""Greatest length by smallest length of ListOps, as in the Long Range Arena."""


@register
class ListOpsConfig(GeneratedTaskConfig):
    """Predict the value of a nested expression of MIN, MAX, MED and SM (sum modulo 10) on digits.

    The defaults are the Long Range Arena's; Nangia and Bowman (2018) have shorter expressions of at most 5 arguments.

    Attributes:
        min_length: rows are longer than this.
        max_length: rows are shorter than this.
        max_depth: levels of nesting at most, the outermost operation and the digits counted.
        max_args: arguments of an operation at most.
    """

    kind: ClassVar[str] = "listops"
    about = About(
        also_called=("list_ops", "lra_listops"),
        source="Nangia and Bowman 2018, section 3; Tay et al. 2021 (Long Range Arena), section 2.2.1",
        equation=r"[\operatorname{MAX}\; 4\; [\operatorname{MIN}\; 2\; 3]\; 1] = 4, \qquad L = -\log p(y \mid x)",
        differs=(("pathfinder", "the rows are expressions, whose nesting must be followed."),
                 ("mqar", "the whole row is computed with, in place of looked up in.")),
        pictured=(("[MAX", ""), ("4", ""), ("[MIN", ""), ("2", ""), ("3", ""), ("]", ""), ("1", ""), ("]", "4")))

    min_length: int = Field(default=500, ge=0)
    max_length: int = Field(default=2000, gt=4, le=1 << 16)
    max_depth: int = Field(default=10, gt=1, le=100)
    max_args: int = Field(default=10, gt=1, le=100)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_length < self.min_length + 2:
            raise rule("max_length", f"{self.max_length}, while rows are shorter than that and longer than "
                       f"{self.min_length}.", f"Give {self.min_length + 2} or more.")
        if self.generator.likelihood < LEAST:
            raise rule("min_length", f"{self.min_length}, while of expressions of depth {self.max_depth} with up to "
                       f"{self.max_args} arguments a share of {self.generator.likelihood:.2g} has between "
                       f"{self.min_length} and {self.max_length} tokens, and too few are found.",
                       "Lower it, or raise max_length, max_depth or max_args.")
        return self

    @property
    def generator(self) -> ListOps:
        return ListOps(self.min_length, self.max_length, self.max_depth, self.max_args)

    def at_length(self, length: int) -> Self:
        return self.changed({"min_length": length // PARTED, "max_length": length + 1})

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(min_length=3, max_length=16, max_depth=3, max_args=3, held_out=8)]


@register
class PathfinderConfig(GeneratedTaskConfig):
    """Predict whether one dashed path joins the two dots of a picture, which is read pixel by pixel.

    Lengths in pixels that are not given are those of the Long Range Arena's picture of that size (32, 64, 128 as in
    Path-X, 256), or of the next smaller one.

    Attributes:
        size: pixels of a side; a row has ``size`` squared tokens.
        contour: dashes of a long path; the published sets have 6, 9 and 14.
        distractors: short paths; None: as many as are published for that length.
        dash: length of a dash, in pixels; None: by the size.
        gap: half the distance between the dashes of a path, in pixels; None: by the size.
        continuity: how straight paths are: neighbouring dashes differ by less than 90 degrees divided by it; None: by
            the size.
    """

    kind: ClassVar[str] = "pathfinder"
    about = About(
        also_called=("path_x", "pathx", "lra_pathfinder"),
        source=("Linsley et al. 2018, section 4.1; Kim et al. 2020; Tay et al. 2021 (Long Range Arena), sections "
                "2.2.5 and 2.2.6"),
        equation=r"L = -\log p(y \mid x_1, \ldots, x_{n^2}), \qquad y \in \{\text{joined}, \text{not}\}",
        differs=(("pixels", "pictures are drawn by the task, and the answer depends on pixels that are far apart."),
                 ("listops", "the rows are pictures.")),
        pictured=(("pixel 1", ""), ("pixel 2", ""), ("...", ""), ("pixel 1024", "joined")))

    size: int = Field(default=32, ge=12, le=2048)
    contour: int = Field(default=14, gt=1, le=1000)
    distractors: int | None = Field(default=None, ge=0, le=10_000)
    dash: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    gap: int | None = Field(default=None, ge=1)
    continuity: float | None = Field(default=None, ge=1, allow_inf_nan=False)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        look = self.generator.look
        stroke, room = look.dash + 2 * min(look.gaps), self.size - 2 * look.border
        needed = 2 * self.contour * stroke * (look.thickness + 2 * min(look.gaps))
        if needed > room * room / 2:
            raise rule("contour", f"two paths of {self.contour} dashes, with the room around them, take {needed:,.0f} "
                       f"pixels, more than half of the {room * room:,} within the border of {self.size} x {self.size}.",
                       "Lower contour, dash or gap, or raise size.")
        return self

    @property
    def generator(self) -> Pathfinder:
        look = look_of(self.size)
        given = {"dash": self.dash, "gaps": None if self.gap is None else (self.gap,), "continuity": self.continuity}
        short = max(1, self.contour // 3)
        count = look.distracting // short if self.distractors is None else self.distractors
        return Pathfinder(self.size, self.contour, count, look.changed(given))

    def at_length(self, length: int) -> Self:
        size = math.isqrt(length)
        if size * size != length:
            raise ConfigError([f"task: rows of {length:,} tokens, while a picture has the square of a size. Give "
                               f"{size * size:,} or {(size + 1) ** 2:,}."])
        return self.changed({"size": size})

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(size=16, contour=3, held_out=8), cls(size=20, contour=3, distractors=1, dash=3, gap=1,
                                                        continuity=1.5, rows=16, held_out=8)]


@register
class PixelsConfig(RowTaskConfig, HasClasses):
    """Predict the class of an image that is read pixel by pixel, row by row, its colours one after another.

    The images are those of ``data.path``, as for `classify_images`, with bytes as pixels: their 256 shades are ids, and
    the ids behind them stand for the classes.

    Attributes:
        images: the number of images to train on, drawn at random by ``data.split_seed``; None: all.
        permuted: read the pixels in one random order, the same for all images, drawn by ``data.split_seed``.
    """

    kind: ClassVar[str] = "pixels"
    about = About(
        also_called=("smnist", "psmnist", "sequential_mnist", "pixel_by_pixel"),
        source="Le et al. 2015, section 4.2 (and permuted); Tay et al. 2021, section 2.2.4",
        equation=r"L = -\log p(y \mid x_1, \ldots, x_{h w c})",
        differs=(("classify_images", "pixels are tokens that come one after another."),
                 ("pathfinder", "images are those of the data.")),
        pictured=(("pixel 1", ""), ("pixel 2", ""), ("...", ""), ("pixel 784", "seven")))

    images: int | None = Field(default=None, gt=0)
    permuted: bool = False

    @property
    def longest(self) -> None:
        return None

    @property
    def first_class(self) -> int:
        return LEVELS

    def labels(self, data: DataSettings) -> tuple[str, ...]:
        return image_parts(data, self.images).train.class_names() if data.path is not None else ()

    def vocabulary(self, data: DataSettings) -> int:
        return LEVELS + len(self.labels(data))

    def digest(self, data: DataSettings) -> str:
        return image_parts(data, self.images).corpus_sha256

    def read(self, data: DataSettings, part: Part, labels: tuple[str, ...]) -> PixelRows:
        parts = image_parts(data, self.images)
        if part == "test":
            if data.test_path is None:
                raise DataError("the run has no test images.", where="data.test_path",
                                remedy="Name them in the run's configuration.")
            images = read_images(data.test_path)
        else:
            images = parts.train if part == "train" else parts.validation
        return PixelRows(images, labels or parts.train.class_names(), data.split_seed if self.permuted else None)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(images=100, permuted=True)]


class PixelRows(RowExamples):
    """Images as rows of their bytes.

    Args:
        images: with bytes as pixels.
        names: of the classes, in the order of their ids.
        seed: of the order in which pixels are read; None: row by row.

    Raises:
        DataError: pixels are no bytes, or a label is none of ``names``.
    """

    def __init__(self, images: Images, names: tuple[str, ...], seed: int | None) -> None:
        if images.pixels.dtype != np.uint8:
            raise DataError(f"pixels of the type {images.pixels.dtype}, which are no ids.", where=images.name,
                            remedy="Give images whose pixels are bytes from 0 to 255.")
        flat = images.pixels.transpose(0, 2, 3, 1).reshape(len(images), -1)
        length = flat.shape[1]
        order = np.arange(length) if seed is None else Draws(seed, np.array([0])).different(length, length)[0]
        self.name, self.size, self.longest, self.mean_length = images.name, len(images), length, float(length)
        self._flat, self._order, self._classes = flat, order, LEVELS + images.ids(names)

    def rows(self, index: Int64[np.ndarray, " B"]) -> AnsweredRows:
        ids = self._flat[index][:, self._order].astype(np.int64)
        return AnsweredRows(ids, None, np.full((len(index), 1), self.longest - 1), self._classes[index][:, None])

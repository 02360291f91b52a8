"""Labelled images: their hash, splits and subsets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int64, Shaped

from weft.core.errors import DataError, nearest
from weft.data.duplicates import Repeated
from weft.data.image_files import read_image_arrays

MOST_NAMED = 20
"""Number of classes that an error message lists."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images of one size with the name of each one's class.

    Attributes:
        name: of the file or folder, for messages.
        pixels: bytes from 0 to 255, or float32.
        repeated: see `weft.tasks.base.Examples`; not counted for images.
    """

    name: str
    pixels: Shaped[np.ndarray, "n C H W"]
    labels: Shaped[np.ndarray, " n"]
    repeated: Repeated | None = None

    def __len__(self) -> int:
        """Number of images."""
        return len(self.pixels)

    @property
    def size(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    @property
    def sha256(self) -> str:
        """Hash of the pixels and labels."""
        found = hashlib.sha256(str((self.pixels.shape, self.pixels.dtype)).encode())
        found.update(np.ascontiguousarray(self.pixels).data)
        found.update("\0".join(self.labels.tolist()).encode())
        return found.hexdigest()

    def describe(self) -> str:
        """Name, number, size and hash in one line."""
        size = " x ".join(map(str, self.size))
        return f"{self.name}: {len(self):,} images of {size}, SHA-256 {self.sha256[:12]}"

    def picked(self, places: Int64[np.ndarray, " m"]) -> Images:
        """The images at these indices, in that order."""
        return replace(self, pixels=self.pixels[places], labels=self.labels[places])

    def split(self, share: float, *, seed: int) -> tuple[Images, Images]:
        """The images to train on and a ``share`` that is held out, drawn at random. Raises `DataError`: one of the two
        would be empty."""
        held = round(len(self) * share)
        if not 0 < held < len(self):
            raise DataError(f"a share of {share:g} of {len(self)} images leaves none "
                            f"{'to train on' if held else 'to hold out'}.", where=self.name,
                            remedy="Give another share.")
        order = np.random.default_rng(seed).permutation(len(self))
        return self.picked(np.sort(order[held:])), self.picked(np.sort(order[:held]))

    def limited(self, count: int, *, seed: int) -> Images:
        """``count`` of the images, drawn at random; a larger number with the same seed draws these and others. Raises
        `DataError`: there are fewer."""
        if count > len(self):
            raise DataError(f"{count:,} images, while there are {len(self):,} to train on.", where=self.name,
                            remedy="Give at most as many.")
        return self.picked(np.sort(np.random.default_rng(seed).permutation(len(self))[:count]))

    def class_names(self) -> tuple[str, ...]:
        """The names of the classes: in numerical order if all are whole numbers, otherwise in alphabetical order.
        Raises `DataError`: there are fewer than two."""
        names = sorted(set(self.labels.tolist()))
        if len(names) < 2:
            raise DataError(f"all images to train on have the label {names[0]!r}, so there is nothing to tell apart.",
                            where=self.name, remedy="Give images of at least two classes.")
        whole = all(name.removeprefix("-").isdecimal() for name in names)
        return tuple(sorted(names, key=int) if whole else names)

    def ids(self, names: Sequence[str]) -> Int64[np.ndarray, " n"]:
        """The index of each image's class in ``names``. Raises `DataError`: a label is none of them."""
        known = {name: place for place, name in enumerate(names)}
        found = np.array([known.get(label, -1) for label in self.labels.tolist()], dtype=np.int64)
        if (found < 0).any():
            place = int(np.argmax(found < 0))
            label, more = str(self.labels[place]), ", ..." if len(known) > MOST_NAMED else ""
            listed = ", ".join(list(known)[:MOST_NAMED]) + more
            raise DataError(f"the label {label!r} of image {place} (counted from 0) is none of the model's "
                            f"{len(known)} classes: {listed or 'none'}.", where=self.name,
                            remedy=f"{nearest(label, known)} Correct the label, give images of that class to train "
                                   "on, or name it in model.head.labels.")
        return found


def read_images(path: str | Path) -> Images:
    """The labelled images of a file or folder, see `weft.data.image_files`.

    Raises:
        DataError: they cannot be used, or images and labels differ in number.
        MissingExtra: a folder of PNG files, and Pillow is not installed.
    """
    pixels, labels = read_image_arrays(Path(path))
    if len(pixels) != len(labels):
        raise DataError(f"{len(pixels):,} images and {len(labels):,} labels.", where=str(path),
                        remedy="Give one label for each image.")
    return Images(str(path), pixels, labels)

"""Files of labelled images: NumPy's .npz and .npy, IDX as MNIST ships it, and a folder of PNG files for each class.

    digits.npz                             the arrays ``images`` and ``labels``
    train-images.npy                       images; ``train-labels.npy`` beside it holds the labels
    train-images-idx3-ubyte[.gz]           images; ``train-labels-idx1-ubyte[.gz]`` beside it holds the labels
    photos/cat/*.png, photos/dog/*.png     images, each labelled with the name of its folder

Images are [n,H,W], [n,C,H,W], or [n,H,W,C] where C is 1, 3 or 4.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from tokenize import TokenError
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Shaped

from weft.core.errors import DataError, MissingExtra
from weft.data.compression import ALWAYS_EXPANDED, MOST_TIMES, content_suffix, read_bytes

ARRAYS = ("images", "labels")
Header: TypeAlias = Callable[[io.BytesIO], tuple[tuple[int, ...], bool, np.dtype[Any]]]
HEADERS: Mapping[tuple[int, int], Header] = MappingProxyType({
    (1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0})
"""What reads the head of an array of NumPy, by the version of the format: shape, whether columns come first, type."""
CHANNELS_LAST = (1, 3, 4)
IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
"""The third byte of an IDX file's magic number, and the type of its values."""
FORMATS = "an .npz, .npy or IDX file (names with -idx3-), or a folder of PNG files for each class"

Arrays = tuple[Shaped[np.ndarray, "n C H W"], Shaped[np.ndarray, " n"]]
"""Images, and the name of the class of each."""


def read_image_arrays(path: Path) -> Arrays:
    """The images at ``path`` and their labels.

    Raises:
        DataError: there is nothing, it is of another format than its name says, or its content cannot be used.
        MissingExtra: a folder of PNG files, and Pillow is not installed.
    """
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise DataError("there is no such file or folder.", where=str(path), remedy=f"Give {FORMATS}.")
    suffix = content_suffix(path)
    if suffix == ".npz":
        arrays = _npz(path)
        return _images(arrays["images"], path), _labels(arrays["labels"], path)
    if suffix == ".npy":
        labels = _beside(path)
        return _images(_npy(path), path), _labels(_npy(labels), labels)
    if "idx" in path.name:
        labels = _beside(path)
        return _images(_idx(path), path), _labels(_idx(labels), labels)
    raise DataError("not a name of a known format.", where=str(path), remedy=f"Give {FORMATS}.")


def _beside(path: Path) -> Path:
    """The file of the labels, named as that of the images with ``labels`` in place of ``images``."""
    place = path.name.rfind("images")
    if place < 0:
        raise DataError("the name does not contain 'images', so that of the file with the labels does not follow.",
                        where=str(path), remedy="Name the files ...images... and ...labels..., or give an .npz file "
                        "with the arrays images and labels.")
    name = f"{path.name[:place]}labels{path.name[place + len('images'):]}".replace("idx3", "idx1")
    labels = path.with_name(name)
    if not labels.exists():
        raise DataError(f"there is no file {name} with the labels beside it.", where=str(path),
                        remedy="Put it there, or give an .npz file with the arrays images and labels.")
    return labels


def _damaged(path: Path, kind: str, error: object) -> DataError:
    return DataError(f"not {kind}, or damaged ({error}).", where=str(path),
                     remedy="Check that the file is what its name says, or copy it again.")


def _npy(path: Path, content: bytes | None = None) -> Shaped[np.ndarray, "..."]:
    held = read_bytes(path) if content is None else content
    source = io.BytesIO(held)
    try:
        version = np.lib.format.read_magic(source)
        if version not in HEADERS:
            raise ValueError(f"version {version}")
        shape, columns_first, dtype = HEADERS[version](source)
        size = math.prod(shape) * dtype.itemsize
        if dtype.hasobject or min(shape, default=0) < 0 or size != len(held) - source.tell():
            raise ValueError(f"{len(held) - source.tell():,} bytes where {shape} of {dtype} are said to be")
        array: np.ndarray = np.frombuffer(held, dtype, math.prod(shape), source.tell())
        return array.reshape(shape, order="F" if columns_first else "C")
    except (ValueError, TypeError, EOFError, OSError, SyntaxError, TokenError, RecursionError) as error:
        raise _damaged(path, "an array of NumPy", f"{error!s:.200}") from None


def _npz(path: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    try:
        content = read_bytes(path)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            missing = [name for name in ARRAYS if name not in names]
            if missing:
                listed = ", ".join(sorted(names)) or "none"
                raise DataError(f"it has no array {missing[0]!r}; its arrays: {listed}.", where=str(path),
                                remedy="Save it with numpy.savez(path, images=..., labels=...).")
            most = max(ALWAYS_EXPANDED, MOST_TIMES * len(content))
            if sum(archive.getinfo(f"{name}.npy").file_size for name in ARRAYS) > most:
                raise DataError(f"its arrays unpack to more than {most:,} bytes.", where=str(path),
                                remedy="Save them with numpy.savez, which does not compress.")
            return {name: _npy(path, archive.read(f"{name}.npy")) for name in ARRAYS}
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, NotImplementedError,
            ValueError) as error:
        raise _damaged(path, "an archive of NumPy", error) from None


def _idx(path: Path) -> Shaped[np.ndarray, "..."]:
    """The array of an IDX file: two zero bytes, the type, the number of dimensions, the sizes, big-endian values."""
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_TYPES:
        raise _damaged(path, "an IDX file", f"it begins with {content[:4].hex(' ') or 'nothing'}")
    kind, dims = np.dtype(IDX_TYPES[content[2]]), content[3]
    start = 4 + 4 * dims
    if len(content) < start:
        raise _damaged(path, "an IDX file", "it ends within its header")
    shape = struct.unpack(f">{dims}I", content[4:start])
    wanted = start + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(content) != wanted:
        raise _damaged(path, "an IDX file", f"{len(content):,} bytes where its header says {wanted:,}")
    return np.frombuffer(content, dtype=kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def _folder(path: Path) -> Arrays:
    files = sorted(file for file in path.glob("*/*") if file.suffix.lower() == ".png")
    if not files:
        raise DataError("no PNG file in a folder for each class.", where=str(path),
                        remedy="Put the images of each class into a folder of its own, such as cat/1.png.")
    read, images = _png_reader(), list[np.ndarray]()
    for file in files:
        images.append(read(file))
        if images[-1].shape != images[0].shape:
            sizes = [" x ".join(map(str, image.shape)) for image in (images[-1], images[0])]
            raise DataError(f"an image of {sizes[0]}, while that of {files[0].name} is {sizes[1]}.", where=str(file),
                            remedy="Bring all images to one size and number of channels.")
    return _images(np.stack(images), path), np.array([file.parent.name for file in files])


def _png_reader() -> Callable[[Path], np.ndarray]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingExtra("pillow", "images", "reading PNG files") from None

    def read(file: Path) -> np.ndarray:
        try:
            with Image.open(file, formats=["PNG"]) as image:
                whole = image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB")
                return np.asarray(whole)
        except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise _damaged(file, "a PNG file", error) from None

    return read


def _images(array: Shaped[np.ndarray, "..."], path: Path) -> Shaped[np.ndarray, "n C H W"]:
    """Images as [n,C,H,W] of bytes or float32."""
    if array.ndim not in (3, 4) or array.dtype.kind not in "uif" or not array.size:
        raise DataError(f"images of shape {list(array.shape)} and type {array.dtype}.", where=str(path),
                        remedy="Give numbers of shape [n,H,W], [n,C,H,W] or [n,H,W,C].")
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[1] not in CHANNELS_LAST and array.shape[3] in CHANNELS_LAST:
        array = array.transpose(0, 3, 1, 2)
    if array.dtype != np.uint8:
        finite = np.isfinite(array).reshape(len(array), -1).all(axis=1)
        if not finite.all():
            raise DataError(f"image {int(np.argmin(finite))} (counted from 0) has values that are not finite.",
                            where=str(path), remedy="Correct or remove that image.")
        array = array.astype(np.float32)
    return np.ascontiguousarray(array)


def _labels(array: Shaped[np.ndarray, "..."], path: Path) -> Shaped[np.ndarray, " n"]:
    """Labels as text: names of classes, or whole numbers."""
    if array.ndim != 1 or array.dtype.kind not in "uiU":
        raise DataError(f"labels of shape {list(array.shape)} and type {array.dtype}.", where=str(path),
                        remedy="Give one whole number or name for each image.")
    return array.astype(np.str_)

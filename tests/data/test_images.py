"""Files of images: every format gives the same images; what is refused, and where."""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft.core.errors import DataError, MissingExtra
from weft.data.image_files import read_image_arrays
from weft.data.images import Images, read_images

GENERATOR = np.random.default_rng(0)
PIXELS = GENERATOR.integers(0, 256, (12, 5, 4), dtype=np.uint8)
LABELS = np.arange(12) % 3


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    """The bytes of an IDX file, written from the format's description."""
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def npz(folder: Path, pixels: np.ndarray = PIXELS, labels: np.ndarray = LABELS, name: str = "digits.npz") -> Path:
    np.savez(folder / name, images=pixels, labels=labels)
    return folder / name


def mnist(folder: Path, pixels: bytes, labels: bytes | None = None, *, ending: str = ".gz") -> Path:
    pack = gzip.compress if ending else bytes
    (folder / f"t-labels-idx1-ubyte{ending}").write_bytes(pack(idx(LABELS.astype(np.uint8)) if labels is None
                                                               else labels))
    path = folder / f"t-images-idx3-ubyte{ending}"
    path.write_bytes(pack(pixels))
    return path


def same(found: Images) -> None:
    np.testing.assert_array_equal(found.pixels, PIXELS[:, None])
    assert found.labels.tolist() == [str(label) for label in LABELS]
    assert found.size == (1, 5, 4) and found.class_names() == ("0", "1", "2")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_as_mnist_ships_them(tmp_path: Path, ending: str) -> None:
    same(read_images(mnist(tmp_path, idx(PIXELS), ending=ending)))


def test_numpy_s_files(tmp_path: Path) -> None:
    same(read_images(npz(tmp_path)))
    np.save(tmp_path / "a-images.npy", PIXELS)
    np.save(tmp_path / "a-labels.npy", LABELS)
    same(read_images(tmp_path / "a-images.npy"))


def test_a_folder_of_png_files_for_each_class(tmp_path: Path) -> None:
    for place, (pixels, label) in enumerate(zip(PIXELS, LABELS, strict=True)):
        (tmp_path / f"class{label}").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / f"class{label}" / f"{place:02}.png")
    found = read_images(tmp_path)
    order = np.argsort(LABELS, kind="stable")
    np.testing.assert_array_equal(found.pixels, PIXELS[order][:, None])
    assert found.class_names() == ("class0", "class1", "class2")
    Image.fromarray(PIXELS[0][:3]).save(tmp_path / "class2" / "z.png")
    with pytest.raises(DataError, match=r"z.png: an image of 3 x 4, while that of 00.png is 5 x 4. Bring all images"):
        read_images(tmp_path)
    (tmp_path / "class2" / "z.png").write_bytes(b"GIF89a")
    with pytest.raises(DataError, match=r"z.png: not a PNG file, or damaged .* Check that the file is what its name"):
        read_images(tmp_path)


def test_png_files_without_pillow_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"reading PNG files needs the package 'pillow'.*weft\[images\]"):
        read_images(tmp_path)


def test_colours_may_stand_last(tmp_path: Path) -> None:
    colours = GENERATOR.random((12, 6, 7, 3))
    found = read_images(npz(tmp_path, colours))
    assert found.pixels.dtype == np.float32 and found.size == (3, 6, 7)
    np.testing.assert_array_equal(found.pixels, colours.astype(np.float32).transpose(0, 3, 1, 2))


def test_splits_and_subsets_are_drawn_by_the_seed(tmp_path: Path) -> None:
    images = read_images(npz(tmp_path))
    train, held = images.split(0.25, seed=1)
    assert (len(train), len(held)) == (9, 3)
    assert sorted([*(each.tobytes() for each in train.pixels), *(each.tobytes() for each in held.pixels)]) == sorted(
        each.tobytes() for each in images.pixels)
    assert [each.tobytes() for each in images.split(0.25, seed=2)[1].pixels] != [e.tobytes() for e in held.pixels]
    few, more = ({each.tobytes() for each in images.limited(n, seed=3).pixels} for n in (4, 7))
    assert len(few) == 4 and few < more
    with pytest.raises(DataError, match=r"13 images, while there are 12 to train on. Give at most as many."):
        images.limited(13, seed=0)
    with pytest.raises(DataError, match=r"a share of 0.01 of 12 images leaves none to hold out. Give another share."):
        images.split(0.01, seed=0)


NOT_A_NUMBER = np.where(np.arange(12)[:, None, None] == 7, np.nan, PIXELS.astype(float))


@pytest.mark.parametrize(("make", "message"), [
    (lambda at: npz(at, NOT_A_NUMBER), r"digits.npz: image 7 \(counted from 0\) has values that are not finite."),
    (lambda at: npz(at, PIXELS, LABELS[:9]), r"digits.npz: 12 images and 9 labels. Give one label for each image."),
    (lambda at: npz(at, PIXELS[0]), r"digits.npz: images of shape \[5, 4\] and type uint8. Give numbers of shape"),
    (lambda at: npz(at, PIXELS, LABELS / 2), r"digits.npz: labels of shape \[12\] and type float64. Give one whole"),
    (lambda at: at / "none.npz", r"none.npz: there is no such file or folder. Give an .npz"),
    (lambda at: mnist(at, b"\x89PNG" + bytes(9)), r"idx3-ubyte.gz: not an IDX file, or damaged \(it begins with 89 50"),
    (lambda at: mnist(at, idx(PIXELS)[:-1]), r"not an IDX file, or damaged \(255 bytes where its header says 256\)"),
    (lambda at: mnist(at, idx(PIXELS)[:9]), r"not an IDX file, or damaged \(it ends within its header\)"),
])
def test_what_is_refused(tmp_path: Path, make: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_images(make(tmp_path))  # type: ignore[operator]


def test_other_content_under_a_name_is_refused(tmp_path: Path) -> None:
    for name, what in (("a.npz", "an archive of NumPy"), ("images.npy", "an array of NumPy")):
        (tmp_path / name).write_bytes(b"images")
        (tmp_path / "labels.npy").write_bytes(b"labels")
        with pytest.raises(DataError, match=rf"{name}: not {what}, or damaged .* Check that the file is what its name"):
            read_images(tmp_path / name)
    np.savez(tmp_path / "b.npz", x=PIXELS, labels=LABELS)
    with pytest.raises(DataError, match=r"b.npz: it has no array 'images'; its arrays: labels, x. Save it with"):
        read_images(tmp_path / "b.npz")
    (tmp_path / "c.jpeg").write_bytes(b"")
    with pytest.raises(DataError, match=r"c.jpeg: not a name of a known format. Give an .npz, .npy or IDX file"):
        read_images(tmp_path / "c.jpeg")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: no PNG file in a folder for each class. Put the images of each"):
        read_images(tmp_path / "empty")


def test_labels_are_found_by_their_name(tmp_path: Path) -> None:
    np.save(tmp_path / "pixels.npy", PIXELS)
    with pytest.raises(DataError, match=r"pixels.npy: the name does not contain 'images', so that of the file with"):
        read_images(tmp_path / "pixels.npy")
    np.save(tmp_path / "images.npy", PIXELS)
    with pytest.raises(DataError, match=r"images.npy: there is no file labels.npy with the labels beside it."):
        read_images(tmp_path / "images.npy")


def test_labels_outside_the_classes(tmp_path: Path) -> None:
    images = read_images(npz(tmp_path))
    assert images.ids(("0", "1", "2")).tolist() == LABELS.tolist()
    with pytest.raises(DataError, match=r"the label '2' of image 2 \(counted from 0\) is none of the model's 2 "
                                        r"classes: 0, 1. .*Correct the label, give images of that class"):
        images.ids(("0", "1"))
    with pytest.raises(DataError, match=r"all images to train on have the label '0', so there is nothing to tell"):
        images.picked(np.array([0, 3])).class_names()


@pytest.mark.parametrize("head", [
    "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -2), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': ((1,),), }", "{'descr': [], 'fortran_order': 0, 'shape': (), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (2,", "(" * 3_000, "'''", "\0"])
def test_heads_of_arrays(head: str, tmp_path: Path) -> None:
    for version in (b"\x01\x00", b"\x03\x00", b"\x09\x00"):
        size = struct.pack("<H", len(head) + 1) if version == b"\x01\x00" else struct.pack("<I", len(head) + 1)
        (tmp_path / "images.npy").write_bytes(b"\x93NUMPY" + version + size + head.encode() + b"\n" + bytes(16))
        (tmp_path / "labels.npy").write_bytes(b"")
        with pytest.raises(DataError, match=r"images\.npy: not an array of NumPy, or damaged \("):
            read_image_arrays(tmp_path / "images.npy")


def test_an_archive_whose_list_lies_before_its_beginning(tmp_path: Path) -> None:
    """The file loses its first half: the places that its list names then lie before the file."""
    file = npz(tmp_path)
    file.write_bytes(file.read_bytes()[-400:])
    with pytest.raises(DataError, match=r"digits\.npz: not an archive of NumPy, or damaged"):
        read_images(file)

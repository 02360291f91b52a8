"""The tensors of a foreign folder: listed with shapes and dtypes, and mapped into memory when they are used.

    model.safetensors                    one file
    model.safetensors.index.json         names the shard of each tensor
    pytorch_model.bin[.index.json]       the same as pickles, which are read without running them (weights only)

Pickled files are read only here (`read_pickled`), and only their tensors.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile, is_zipfile

import torch
from safetensors import SafetensorError
from torch import Tensor

from weft.checkpoints.tensors import open_tensors
from weft.core.errors import CheckpointError
from weft.disk.documents import MOST_INDEX_BYTES, Unreadable, lawful_link, read_json
from weft.families.weights import Shape

CONVERT = "Convert the file to safetensors where you trust it."
SINGLE, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX, PICKLE = ".index.json", ".pkl"
COPY_AGAIN = "Copy the folder again, whole."
MOST_LISTED = 100
"""Problems of a folder that an error lists; an index can name millions."""
DTYPES: Mapping[str, torch.dtype] = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
                                     "BF16": torch.bfloat16}
"""Dtypes of weights that Weft computes with, by their names in safetensors."""


class StoredTensor(NamedTuple):
    """Shape and dtype of a stored tensor; the dtype is its name where it is not among `DTYPES`."""

    shape: Shape
    dtype: torch.dtype | str


class TensorFile(ABC):
    """An open file of tensors."""

    @abstractmethod
    def entries(self) -> dict[str, StoredTensor]:
        """Shape and dtype of every tensor, by name."""

    @abstractmethod
    def get(self, name: str) -> Tensor:
        """A tensor, mapped from the file, so that it is read only when it is used."""


class SafeFile(TensorFile):
    """A safetensors file."""

    def __init__(self, path: Path) -> None:
        self._file: Any = open_tensors(path)

    def entries(self) -> dict[str, StoredTensor]:
        found = {}
        for name in self._file.keys():  # noqa: SIM118 - not a mapping
            view = self._file.get_slice(name)
            kind = str(view.get_dtype())
            found[name] = StoredTensor(tuple(view.get_shape()), DTYPES.get(kind, kind))
        return found

    def get(self, name: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(name)
        return tensor


class PickledFile(TensorFile):
    """A file of torch.save."""

    def __init__(self, path: Path) -> None:
        self._tensors = read_pickled(path)

    def entries(self) -> dict[str, StoredTensor]:
        known = set(DTYPES.values())
        return {name: StoredTensor(tuple(tensor.shape), tensor.dtype if tensor.dtype in known else str(tensor.dtype))
                for name, tensor in self._tensors.items()}

    def get(self, name: str) -> Tensor:
        return self._tensors[name]


class Stored:
    """All tensors of a folder.

    Attributes:
        entries: shape and dtype of each.
    """

    def __init__(self, files: Mapping[str, TensorFile]) -> None:
        self._files = dict(files)
        self._places = {tensor: name for name, file in files.items() for tensor in file.entries()}
        self.entries = {tensor: entry for file in files.values() for tensor, entry in file.entries().items()}

    def get(self, name: str) -> Tensor:
        """A tensor, mapped from its file."""
        return self._files[self._places[name]].get(name)

    def shapes(self) -> dict[str, Shape]:
        """The shape of each."""
        return {name: entry.shape for name, entry in self.entries.items()}


def open_stored(folder: Path) -> Stored:
    """The tensors of a folder; only the files' headers are read. Raises `CheckpointError`: no weights, an index that
    names missing files, a file that is damaged or lies outside the folder."""
    names = _file_names(folder)
    problems = [what for name in names if (what := _unfit(folder, name))]
    files: dict[str, TensorFile] = {}
    for name in names if not problems else []:
        try:
            files[name] = PickledFile(folder / name) if name.endswith(".bin") else SafeFile(folder / name)
        except (OSError, SafetensorError, Unreadable) as error:
            problems.append(f"{name}: damaged or truncated ({error}).")
    if problems:
        raise listed(problems, "file", folder, COPY_AGAIN)
    stored = Stored(files)
    _require_indexed(folder, stored)
    return stored


def listed(problems: list[str], what: str, folder: Path, remedy: str) -> CheckpointError:
    """One error for all problems of a folder's files or tensors."""
    count = f"1 {what} cannot" if len(problems) == 1 else f"{len(problems)} {what}s cannot"
    more = len(problems) - MOST_LISTED
    shown = [*problems[:MOST_LISTED], *([f"and {more:,} more."] if more > 0 else [])]
    lines = "".join(f"\n  - {problem}" for problem in shown)
    return CheckpointError(f"{count} be used:{lines}\n", where=str(folder), remedy=remedy)


def _file_names(folder: Path) -> list[str]:
    """The files that hold the weights, as `transformers` chooses them."""
    for single in (SINGLE, PICKLED):
        if _there(folder / single):
            return [single]
        if (folder / f"{single}{INDEX}").is_file():
            return sorted(set(_index(folder / f"{single}{INDEX}").values()))
    shards = sorted(path.name for path in folder.glob("*-of-*.safetensors"))
    if shards:
        raise CheckpointError(f"{len(shards)} shards such as {shards[0]}, but no {SINGLE}{INDEX}, which lists their "
                              "content.", where=str(folder), remedy="Copy the index file too.")
    raise CheckpointError(f"no weights: neither {SINGLE} nor {PICKLED}, whole or in shards.", where=str(folder),
                          remedy="Copy the weights too, or give the folder that has them.")


def _index(path: Path) -> dict[str, str]:
    try:
        content: Any = read_json(path, most=MOST_INDEX_BYTES)
        found: dict[str, str] = {}
        for name, file in content["weight_map"].items():
            if not isinstance(file, str):
                raise TypeError(f"{str(file)[:80]!r} is no name of a file")
            found[name] = file
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the index is damaged ({error!r}).", where=str(path), remedy=COPY_AGAIN) from None


def _require_indexed(folder: Path, stored: Stored) -> None:
    """Raise unless all tensors of the index are in the shards."""
    for single in (SINGLE, PICKLED):
        path = folder / f"{single}{INDEX}"
        if _there(folder / single) or not path.is_file():
            continue
        absent = sorted(name for name in _index(path) if name not in stored.entries)
        if absent:
            raise listed([f"{name}: the index has it, its file has not." for name in absent], "tensor", folder,
                         COPY_AGAIN)
        return


def _there(path: Path) -> bool:
    """Whether there is a file or a link, even a broken one, which a later step reports."""
    return path.is_file() or path.is_symlink()


def _unfit(folder: Path, name: str) -> str:
    """The reason why a file of the folder cannot be opened; empty if it can."""
    if Path(name).name != name or name in (".", ".."):
        return f"{name}: the index names a file outside the folder."
    path = folder / name
    if path.is_symlink() and not lawful_link(path):
        return f"{name}: a link to {os.readlink(path)}, out of the folder. Copy the file itself."
    return "" if path.is_file() else f"{name}: missing."


def read_pickled(path: Path) -> dict[str, Tensor]:
    """The tensors of a file of torch.save, by name, mapped from it where its format allows. Raises `CheckpointError`:
    it is damaged, or holds anything but tensors by name whose numbers are in it."""
    try:
        # Files from before torch 1.6 are not zip archives and cannot be mapped.
        archive = is_zipfile(path)
        if archive:
            _require_unpacked(path)
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except CheckpointError:
        raise
    except Exception as error:  # a damaged file can raise almost anything in the unpickler
        if type(error).__name__ == "UnpicklingError":
            raise CheckpointError("the file holds more than tensors (code that unpickling would run, or damage), so it "
                                  "is not opened.", where=str(path), remedy=CONVERT) from None
        raise CheckpointError(f"the file is damaged ({error}).", where=str(path),
                              remedy="Copy the folder again, whole.") from None
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError("the file is not a mapping from names to tensors.", where=str(path), remedy=CONVERT)
    wrong = next((name for name, tensor in content.items() if not _is_held(tensor)), None)
    if wrong is not None:
        raise CheckpointError(f"{wrong!r:.200} is no tensor whose numbers are all in the file.", where=str(path),
                              remedy=CONVERT)
    return {str(name): tensor for name, tensor in content.items()}


def _require_unpacked(path: Path) -> None:
    """Raise unless the members of an archive lie in it as they are, each once, as torch.save writes them: a packed one
    of three megabytes may unpack to three gigabytes.

    Raises:
        CheckpointError: they do not.
        BadZipFile: the archive is damaged.
    """
    size, names = path.stat().st_size, set[str]()
    with ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != ZIP_STORED or member.file_size != member.compress_size:
                raise CheckpointError(f"the member {member.filename!r:.200} is compressed.", where=str(path),
                                      remedy=CONVERT)
            if member.header_offset + member.file_size > size or member.filename in names:
                raise BadZipFile(f"{member.filename!r:.200} is there twice, or ends beyond the file")
            if member.filename.endswith(PICKLE) and member.file_size > MOST_INDEX_BYTES:
                raise CheckpointError(f"the list of its tensors has {member.file_size:,} bytes; at most "
                                      f"{MOST_INDEX_BYTES:,} are read.", where=str(path), remedy=CONVERT)
            names.add(member.filename)


def _is_held(tensor: Tensor) -> bool:
    """Whether a tensor's numbers are in the file, each once: one number may stand for a matrix of terabytes."""
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    return plain and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()

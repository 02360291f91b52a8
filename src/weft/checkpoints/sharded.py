"""Tensors written by many processes at once, each the boxes that it holds, and read by any number of others.

    sharded/index.json              for every tensor its dtype and shape, and its boxes: where each begins, its shape,
                                    and the file and key that it is in
    sharded/rank-00000.safetensors  the boxes that one process has written

`torch.distributed.checkpoint` plans who writes what (a box that several processes hold is written by one of them) and
writes in the background where asked (`async_save`); nothing is gathered. The files are safetensors and JSON, where
torch's own storage is a pickle.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from weft.checkpoints.layout import MODEL_FILE, TRAINING_FILE
from weft.checkpoints.tensors import complex_names, open_tensors
from weft.core.errors import CheckpointError
from weft.disk.documents import MOST_INDEX_BYTES, read_json
from weft.disk.manifest import COPY_AGAIN

SHARDED = "sharded"
INDEX_FILE = "index.json"
MODEL, TRAINING = "model.", "training."
"""Prefixes of the names of the model's tensors, and of those that resuming needs besides."""


class TensorBox(NamedTuple):
    """A box of a whole tensor: where it begins, and its entries."""

    offsets: tuple[int, ...]
    tensor: Tensor


class Boxes(NamedTuple):
    """A tensor of which this process holds some boxes: the whole one's dtype and shape, and these."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    held: tuple[TensorBox, ...]

    @staticmethod
    def of(tensor: Tensor) -> Boxes:
        """A tensor that this process holds whole."""
        return Boxes(tensor.dtype, tuple(tensor.shape), (TensorBox((0,) * tensor.dim(), tensor),))


class _Stored(NamedTuple):
    """A tensor in the files: its dtype and shape, and where each of its boxes begins, with shape, file and key."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...], str, str], ...]


class StoredTensors:
    """The tensors in a checkpoint, whether one process has written it or many: ``model.NAME`` and ``training.NAME``.

    Raises:
        CheckpointError: the index is missing or damaged, or its boxes do not fill a tensor.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._folder = checkpoint
        path = checkpoint / SHARDED / INDEX_FILE
        try:
            self._stored = dict(((str(name), _read_entry(entry))
                                 for name, entry in read_json(path, most=MOST_INDEX_BYTES).items())
                                if is_sharded(checkpoint) else _listed(checkpoint))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            raise CheckpointError(f"the file is damaged ({error!r}).", where=str(path), remedy=COPY_AGAIN) from None
        self._require_held(path)
        for name, stored in self._stored.items():
            found = sum(math.prod(shape) for _, shape, _, _ in stored.boxes)
            if found != math.prod(stored.shape):
                raise CheckpointError(f"{name}: {found:,} of its {math.prod(stored.shape):,} numbers are there.",
                                      where=str(path), remedy=COPY_AGAIN)

    def _require_held(self, path: Path) -> None:
        """Raise unless the files are as long as what the index says is in them, before memory is taken for it."""
        files = {self._folder / file for stored in self._stored.values() for _, _, file, _ in stored.boxes}
        there = sum(file.stat().st_size for file in files if file.is_file())
        told = sum(math.prod(stored.shape) * stored.dtype.itemsize for stored in self._stored.values())
        if told > there:
            raise CheckpointError(f"it lists tensors of {told:,} bytes, and its files have {there:,}.", where=str(path),
                                  remedy=COPY_AGAIN)

    def names(self) -> Sequence[str]:
        """The names of all tensors."""
        return tuple(self._stored)

    def kind(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Dtype and shape of a whole tensor."""
        return self._stored[name].dtype, self._stored[name].shape

    def whole(self, prefix: str = "") -> dict[str, Tensor]:
        """All tensors whose names begin with ``prefix``, whole, by their names without it."""
        chosen = {name: torch.empty(stored.shape, dtype=stored.dtype) for name, stored in self._stored.items()
                  if name.startswith(prefix)}
        self.fill({name: Boxes.of(tensor) for name, tensor in chosen.items()})
        return {name.removeprefix(prefix): tensor for name, tensor in chosen.items()}

    @torch.no_grad()
    def fill(self, wanted: Mapping[str, Boxes]) -> None:
        """Copy what is stored into boxes, whoever has written it. Raises `CheckpointError`: a tensor is not there, or
        has another shape; all are listed. Or a file is damaged."""
        problems = [problem for name, boxes in wanted.items() if (problem := self._problem(name, boxes))]
        if problems:
            listed = "".join(f"\n  - {problem}" for problem in problems)
            raise CheckpointError(f"the checkpoint does not fit the run:{listed}\n", where=str(self._folder),
                                  remedy="Resume with the configuration of the run.")
        for file, copies in self._by_file(wanted).items():
            try:
                with open_tensors(self._folder / file) as opened:
                    for key, offsets, box in copies:
                        _copy(opened, key, offsets, box)
            except (OSError, SafetensorError, ValueError, RuntimeError) as error:
                raise CheckpointError(f"the tensors cannot be read ({error}).", where=str(self._folder / file),
                                      remedy=COPY_AGAIN) from None

    def _problem(self, name: str, boxes: Boxes) -> str | None:
        if name not in self._stored:
            return f"{name}: missing, shape {list(boxes.shape)}."
        shape = self._stored[name].shape
        return None if shape == boxes.shape else f"{name}: shape {list(shape)} where the run has {list(boxes.shape)}."

    def _by_file(self, wanted: Mapping[str, Boxes]) -> dict[str, list[tuple[str, tuple[int, ...], TensorBox]]]:
        """The stored boxes that each wanted one meets, by file: key, where the stored box begins, the wanted one."""
        found: dict[str, list[tuple[str, tuple[int, ...], TensorBox]]] = {}
        for name, boxes in wanted.items():
            for box in boxes.held:
                for offsets, shape, file, key in self._stored[name].boxes:
                    if all(have < want + there and want < have + here for have, here, want, there in
                           zip(offsets, shape, box.offsets, box.tensor.shape, strict=True)):
                        found.setdefault(file, []).append((key, offsets, box))
        return found


def is_sharded(checkpoint: Path) -> bool:
    """Whether many processes, or one in the background, have written a checkpoint's tensors."""
    return (checkpoint / SHARDED).is_dir()


def _listed(checkpoint: Path) -> Iterator[tuple[str, _Stored]]:
    """The tensors of an ordinary checkpoint, each in one box."""
    for prefix, file in ((MODEL, MODEL_FILE), (TRAINING, TRAINING_FILE)):
        if not (checkpoint / file).exists():
            continue
        with open_tensors(checkpoint / file) as opened:
            pairs = complex_names(opened)
            for name in opened.keys():  # noqa: SIM118 - not a mapping
                found = opened.get_slice(name)
                shape, empty = tuple(found.get_shape()), opened.get_tensor(name) if not found.get_shape() else found[:0]
                shape = shape[:-1] if name in pairs else shape
                dtype = torch.view_as_complex(empty).dtype if name in pairs else empty.dtype
                yield f"{prefix}{name}", _Stored(dtype, shape, (((0,) * len(shape), shape, file, name),))


def _read_entry(entry: Mapping[str, Any]) -> _Stored:
    boxes = tuple((_sizes(box["offsets"]), _sizes(box["shape"]), f"{SHARDED}/{_name(box['file'])}", str(box["key"]))
                  for box in entry["boxes"])
    dtype, shape = getattr(torch, entry["dtype"]), _sizes(entry["shape"])
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{entry['dtype']!r} is no dtype")
    if any(len(offsets) != len(shape) or len(sides) != len(shape) for offsets, sides, _, _ in boxes):
        raise ValueError(f"a box has another number of dimensions than its tensor, {len(shape)}")
    return _Stored(dtype, shape, boxes)


def _sizes(found: Any) -> tuple[int, ...]:
    if not isinstance(found, list) or not all(type(each) is int and 0 <= each < 2**63 for each in found):
        raise ValueError(f"{str(found)[:80]} is no shape")
    return tuple(found)


def _name(file: Any) -> str:
    if not isinstance(file, str) or Path(file).name != file:
        raise ValueError(f"{str(file)[:80]!r} is no name of a file beside it")
    return file


def _copy(file: Any, key: str, offsets: tuple[int, ...], box: TensorBox) -> None:
    """Copy what a stored box, which begins at ``offsets``, and a wanted one have in common."""
    stored, complex_pairs = file.get_slice(key), box.tensor.is_complex()
    ends = [have + size for have, size in zip(offsets, stored.get_shape(), strict=False)]
    begins = [max(have, want) for have, want in zip(offsets, box.offsets, strict=True)]
    stops = [min(end, want + size) for end, want, size in zip(ends, box.offsets, box.tensor.shape, strict=False)]
    source = tuple(_ranges(begins, stops, offsets))
    taken: Tensor = stored[source] if source else file.get_tensor(key)
    target = box.tensor[tuple(_ranges(begins, stops, box.offsets))]
    target.copy_(torch.view_as_complex(taken.contiguous()) if complex_pairs else taken)


def _ranges(begins: Sequence[int], stops: Sequence[int], origin: Sequence[int]) -> Iterator[slice]:
    return (slice(begin - first, stop - first) for begin, stop, first in zip(begins, stops, origin, strict=True))

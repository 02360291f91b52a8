"""Reading and writing the tensors of models as safetensors files; no pickles are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from weft.core.errors import CheckpointError, nearest
from weft.core.layer import kept_dtypes
from weft.core.model import Resizable
from weft.disk.documents import MOST_INDEX_BYTES, Unreadable, parse_json, require_regular
from weft.disk.manifest import COPY_AGAIN

COMPLEX = "complex"
"""The metadata key that lists the complex tensors of a file; they are stored as pairs of real numbers."""


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; a tensor with several names (tied weights) once, under its first name."""
    tensors: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensors.setdefault(id(tensor), (name, tensor))
    return dict(tensors.values())


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names and contents of tensors."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors, from any device, to a safetensors file."""
    names = [name for name, tensor in tensors.items() if tensor.is_complex()]
    plain = {name: torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
             for name, tensor in tensors.items()}
    save_file({name: tensor.cpu().contiguous() for name, tensor in plain.items()}, path,
              metadata={COMPLEX: json.dumps(names)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, by name. Raises `CheckpointError`: the file is missing, truncated or not a safetensors
    file."""
    try:
        with open_tensors(path) as file:
            pairs = complex_names(file)
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        return {name: torch.view_as_complex(tensor) if name in pairs else tensor for name, tensor in stored.items()}
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"the tensors cannot be read ({error}).", where=str(path), remedy=COPY_AGAIN) from None


def open_tensors(path: Path) -> Any:
    """An open safetensors file. Its header is read whole, so it may not be long; the format allows no name twice in it,
    which the library does not look at.

    Raises:
        OSError: it is missing or cannot be read.
        SafetensorError: it is damaged.
        Unreadable: it is no regular file, or its header is too long or names a tensor twice.
    """
    require_regular(path)
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MOST_INDEX_BYTES:
            raise Unreadable(f"its header has {size:,} bytes; at most {MOST_INDEX_BYTES:,} are read")
        header = file.read(size)
    opened = safe_open(path, framework="pt")
    parse_json(header, once=True)
    return opened


def complex_names(file: Any) -> frozenset[str]:
    """The names of an open file's tensors that stand for complex ones. Raises `Unreadable`: what lists them is
    damaged."""
    found = parse_json((file.metadata() or {}).get(COMPLEX, "[]"))
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise Unreadable(f"its list of complex tensors is {str(found)[:80]!r}")
    return frozenset(found)


def assign_tensors(model: nn.Module, tensors: Mapping[str, Tensor], *, where: str) -> None:
    """Assign tensors to the parameters and buffers of a model, with their dtypes except where a part declares its own
    (`Declared.exact`). Tied weights stay tied. Raises `CheckpointError`: tensors are missing, unexpected or of another
    shape; the error lists all of them."""
    require_fitting(model, tensors, where=where)
    kept = kept_dtypes(model)
    for name, place in own_tensors(model).items():
        tensor = tensors[name]
        exact = id(place) in kept.exact and tensor.is_floating_point()
        place.data = tensor.to(place.device, kept.after(place, tensor.dtype) if exact else tensor.dtype)


def require_fitting(model: nn.Module, tensors: Mapping[str, Tensor], *, where: str) -> None:
    """Refuse tensors that are not a model's; its own may be on the meta device. Raises `CheckpointError`: tensors are
    missing, unexpected or of another shape; the error lists all of them."""
    if isinstance(model, Resizable):
        model.prepare({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    problems = _problems(own_tensors(model), tensors)
    if problems:
        count = "1 tensor does" if len(problems) == 1 else f"{len(problems)} tensors do"
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise CheckpointError(f"{count} not fit the model of this checkpoint:{listed}\n", where=where,
                              remedy="Load it with the configuration and the parts that it was saved with.")


def _problems(places: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    missing, unexpected = sorted(set(places) - set(tensors)), sorted(set(tensors) - set(places))
    problems = [f"{name}: missing, shape {list(places[name].shape)}." for name in missing]
    problems += [f"{name}: unexpected. {nearest(name, missing) if missing else ''}".rstrip() for name in unexpected]
    problems += [f"{name}: shape {list(tensors[name].shape)} where the model has {list(places[name].shape)}."
                 for name in sorted(set(places) & set(tensors)) if tensors[name].shape != places[name].shape]
    return problems

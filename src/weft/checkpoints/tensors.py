"""Tensors in safetensors files: names, ties, shapes. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from weft.core.errors import CheckpointError, nearest
from weft.core.layer import kept_dtypes
from weft.core.model import Resizable
from weft.disk.manifest import COPY_AGAIN

COMPLEX = "complex"
"""Key of the file's metadata that lists the complex tensors; each is stored as pairs of real numbers."""


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; a tensor with several names (tied weights) once, under the first."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors from any device."""
    names = [name for name, tensor in tensors.items() if tensor.is_complex()]
    plain = {name: torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
             for name, tensor in tensors.items()}
    save_file({name: tensor.cpu().contiguous() for name, tensor in plain.items()}, path,
              metadata={COMPLEX: json.dumps(names)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file.

    Raises:
        CheckpointError: the file is missing, truncated or no safetensors file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = json.loads((file.metadata() or {}).get(COMPLEX, "[]"))
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"the tensors cannot be read ({error}).", where=str(path), remedy=COPY_AGAIN) from None
    return {name: torch.view_as_complex(tensor) if name in names else tensor for name, tensor in found.items()}


def assign_tensors(model: nn.Module, found: Mapping[str, Tensor], *, where: str) -> None:
    """Put tensors into a model, which takes over their dtypes but for what it needs `exact`; tied weights stay tied.

    Raises:
        CheckpointError: listing every tensor that is missing, unexpected or of another shape.
    """
    if isinstance(model, Resizable):
        model.prepare({name: tuple(tensor.shape) for name, tensor in found.items()})
    wanted = own_tensors(model)
    problems = _problems(wanted, found)
    if problems:
        count = "1 tensor does" if len(problems) == 1 else f"{len(problems)} tensors do"
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise CheckpointError(f"{count} not fit the model of this checkpoint:{listed}\n", where=where,
                              remedy="Load it with the configuration and the parts that it was saved with.")
    kept = kept_dtypes(model)
    for name, tensor in wanted.items():
        given = found[name]
        exact = id(tensor) in kept.exact and given.is_floating_point()
        tensor.data = given.to(tensor.device, kept.after(tensor, given.dtype) if exact else given.dtype)


def _problems(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    missing, unexpected = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
    problems = [f"{name}: missing, shape {list(wanted[name].shape)}." for name in missing]
    problems += [f"{name}: unexpected. {nearest(name, missing) if missing else ''}".rstrip() for name in unexpected]
    problems += [f"{name}: shape {list(found[name].shape)} where the model has {list(wanted[name].shape)}."
                 for name in sorted(set(wanted) & set(found)) if found[name].shape != wanted[name].shape]
    return problems

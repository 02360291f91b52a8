"""The model under an adapter: where it is, that it is the right one, and putting an adapter on it.

Weft's own folders of an adapter alone.

    weft_adapter.json    format, the model under it (its path and a fingerprint of its weights), the model's rewrites
    adapter.safetensors  what training has changed: matrices of low rank, lengths, further parameters
    MANIFEST.json        size and SHA-256 of both
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.checkpoints.hub import hub_model, resolve
from weft.checkpoints.layout import ADAPTER_FILE, ADAPTER_TENSORS, PEFT_FILE
from weft.checkpoints.load import Loaded, load_checkpoint
from weft.checkpoints.locate import find_checkpoint
from weft.checkpoints.tensors import own_tensors, read_tensors, write_tensors
from weft.core.config import parse_part
from weft.core.declarations import Trait
from weft.core.errors import CheckpointError, ConfigError, UnsupportedError
from weft.core.layer import traits_of
from weft.core.model import Model
from weft.core.part_config import PartConfig
from weft.core.strict_json import dumps
from weft.core.version import VERSION
from weft.disk.documents import read_json
from weft.disk.manifest import COPY_AGAIN, check_manifest, write_manifest
from weft.interop.huggingface.folder import is_foreign
from weft.interop.huggingface.loading import load_folder
from weft.linear.low_rank import Adapted
from weft.linear.merging import closed_names
from weft.linear.rewrite import rewritten

BASE = "adapts"
"""The key, among the facts of an adapted model, of where the model under its adapters is."""
OTHER = "Give the model that the adapter was trained on (--base of weft convert, base= of weft.load)."


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter alone."""
    return any((folder / name).is_file() for name in (ADAPTER_FILE, PEFT_FILE))


def open_base(base: str | None, folder: Path) -> Loaded:
    """The model that an adapter's folder names, as it is stored.

    Args:
        base: its folder, or its name on the Hub; a relative path is looked for from here and from the adapter's folder.

    Raises:
        CheckpointError: there is none, or it is an adapter itself.
    """
    if base is None:
        raise CheckpointError("the adapter does not name the model that it adapts.", where=str(folder), remedy=OTHER)
    place = next((each for each in (Path(base), folder / base) if each.exists()), None)
    if place is None and hub_model(base) is None:
        raise CheckpointError(f"the model that it adapts is not at {base!r}.", where=str(folder), remedy=OTHER)
    found = find_checkpoint(resolve(base) if place is None else place)
    if is_adapter(found):
        raise CheckpointError(f"{base!r} is an adapter, not a model.", where=str(folder), remedy=OTHER)
    loaded = load_folder(found) if is_foreign(found) else load_checkpoint(found)
    return replace(loaded, facts={**loaded.facts, BASE: base if place is None else str(place)})


def put_on(base: Loaded, rewrites: Sequence[PartConfig], folder: Path, fingerprint: str | None) -> Loaded:
    """The model with new adapters, whose weights are still to be read.

    Args:
        base: the model, which is changed.
        rewrites: all of the adapted model's; those that the base has come first.
        fingerprint: of the model that the adapter was trained on; None where it is not recorded.

    Raises:
        CheckpointError: the rewrites do not fit this model, or it is another one.
    """
    kept = base.config.rewrites
    if list(rewrites[:len(kept)]) != kept:
        raise CheckpointError(f"the model at {base.path} has rewrites of its own that the adapter's does not have.",
                              where=str(folder), remedy=OTHER)
    try:
        with torch.random.fork_rng(devices=[]):
            model = rewritten(base.model, rewrites[len(kept):]).eval()
    except ConfigError as error:
        listed = "".join(f"\n  - {problem}" for problem in error.problems)
        raise CheckpointError(f"the adapter does not fit the model at {base.path}:{listed}\n", where=str(folder),
                              remedy=OTHER) from None
    model.config = base.config.with_(rewrites=list(rewrites))
    if fingerprint is not None and fingerprint != fingerprint_of(model):
        raise CheckpointError(f"it was trained on other weights than those of {base.path}.", where=str(folder),
                              remedy=OTHER)
    return replace(base, model=model, config=model.config, run=None)


def trained_tensors(model: Model, purpose: str) -> dict[str, Tensor]:
    """The tensors of an adapted model that training has changed, by name. Raises `UnsupportedError`: it has no
    adapters, or training changes it otherwise too."""
    if not any(isinstance(module, Adapted) for module in model.modules()):
        raise UnsupportedError("this model has no adapters to save apart.", where=purpose,
                               remedy="Train it with a rewrite of kind lora, or write it whole (weft, hf).")
    if Trait.BATCH_STATISTICS in traits_of(model):
        raise UnsupportedError("training has changed running statistics besides the adapters.", where=purpose,
                               remedy="Write the model whole (weft, hf).")
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


def fingerprint_of(model: nn.Module) -> str:
    """SHA-256 of the names and values of what training does not change, as float32, under the names that these tensors
    have without adapters: the same for all adapters of a model, in every dtype that float32 holds."""
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    closed = closed_names(model)
    named = {_plain(name, closed): tensor for name, tensor in own_tensors(model).items() if id(tensor) not in trained}
    found = hashlib.sha256()
    for name in sorted(named):
        tensor = named[name].detach().cpu()
        tensor = tensor.float() if tensor.is_floating_point() else tensor
        found.update(name.encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _plain(name: str, closed: Mapping[str, str]) -> str:
    own = name.replace(".base.", ".")
    return closed.get(own, own).replace(".map.", ".")


@torch.no_grad()
def fill(places: Mapping[str, Tensor], tensors: Mapping[str, Tensor], where: str) -> None:
    """Assign an adapter's tensors to their places, in the dtype of the places. Raises `CheckpointError`: tensors are
    missing, unexpected, of another shape, or not finite; all are listed."""
    problems = [f"{name}: missing." for name in places if name not in tensors]
    problems += [f"{name}: unexpected." for name in tensors if name not in places]
    problems += [f"{name}: shape {list(tensors[name].shape)} where the model needs {list(place.shape)}."
                 for name, place in places.items() if name in tensors and tensors[name].shape != place.shape]
    problems += [f"{name}: holds NaN or infinity." for name, each in tensors.items() if not bool(each.isfinite().all())]
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise CheckpointError(f"{len(problems)} problem{'s' if len(problems) > 1 else ''} with the adapter's tensors:"
                              f"{listed}\n", where=where, remedy="Copy the adapter again, whole.")
    for name, place in places.items():
        place.copy_(tensors[name])


FORMAT = 1


def write_own(model: Model, base: str, draft: Path) -> None:
    """Write a model's adapters into an empty folder.

    Args:
        model: with adapters.
        base: where the model under them is.

    Raises:
        UnsupportedError: the model has no adapters.
    """
    tensors = trained_tensors(model, "adapter")
    content = {"weft_adapter": FORMAT, "weft_version": VERSION, "base": base, "fingerprint": fingerprint_of(model),
               "rewrites": model.config.dump()["rewrites"]}
    (draft / ADAPTER_FILE).write_text(dumps(content, indent=1) + "\n", encoding="utf-8")
    write_tensors(draft / ADAPTER_TENSORS, tensors)
    write_manifest(draft)


def rewrites_of(folder: Path) -> tuple[dict[str, Any], list[PartConfig]]:
    """The content of an adapter's file, and the rewrites in it. Raises `CheckpointError`: it is damaged, of a newer
    format, or needs parts that are not registered."""
    path = folder / ADAPTER_FILE
    try:
        content = read_json(path)
        version, rewrites = int(content["weft_adapter"]), list(content["rewrites"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the file is damaged ({error}).", where=str(path), remedy=COPY_AGAIN) from None
    if version > FORMAT:
        raise CheckpointError(f"format {version} is newer than this Weft reads ({FORMAT}).", where=str(path),
                              remedy="Update Weft.")
    try:
        return content, [parse_part(("rewrite",), each) for each in rewrites]
    except ConfigError as error:
        raise CheckpointError(f"its rewrites cannot be read: {' '.join(error.problems)}", where=str(path),
                              remedy="If they need a plugin, give that file with --plugin.") from None


def read_own(folder: Path, *, base: str | None = None, dtype: torch.dtype | None = None) -> Loaded:
    """The model under an adapter, with the adapter.

    Args:
        base: the model under it; None: the one that the folder names.
        dtype: of all weights; None: as the model's are stored.

    Raises:
        CheckpointError: a file is damaged, the model is not there, or it is another one.
    """
    check_manifest(folder)
    content, rewrites = rewrites_of(folder)
    found = put_on(open_base(base or content.get("base"), folder), rewrites, folder, content.get("fingerprint"))
    found.model.to(dtype)
    fill(trained_tensors(found.model, "adapter"), read_tensors(folder / ADAPTER_TENSORS), str(folder / ADAPTER_TENSORS))
    return found

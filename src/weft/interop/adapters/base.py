"""The model under an adapter: where it is, that it is the right one, and putting an adapter on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from weft.checkpoints.hub import hub_model, resolve
from weft.checkpoints.layout import ADAPTER_FILE, PEFT_FILE
from weft.checkpoints.load import Loaded, load_checkpoint
from weft.checkpoints.locate import find_checkpoint
from weft.checkpoints.tensors import own_tensors
from weft.core.errors import CheckpointError, ConfigError, UnsupportedError
from weft.core.layer import traits_of
from weft.core.model import Model
from weft.core.part_config import PartConfig
from weft.core.traits import Trait
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
        folder: the adapter's.

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
        folder: the adapter's, for errors.
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
    """The tensors of an adapted model that training has changed, by name.

    Raises:
        UnsupportedError: it has no adapters, or training changes it otherwise too.
    """
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
    """Assign an adapter's tensors to their places, in the dtype of the places.

    Raises:
        CheckpointError: tensors are missing, unexpected, of another shape, or not finite; all are listed.
    """
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

"""Rewritten models as plain ones: each map one matrix again, for formats that know no others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from weft.core.errors import UnsupportedError
from weft.core.model import LanguageModel
from weft.linear.linear import HoldsMatrix, Rewritten

OPENED = ".map."
"""Where the matrix of a part stands that has been opened."""


def merged(model: LanguageModel) -> LanguageModel:
    """A model without rewrites that computes what ``model`` does in evaluation mode; itself where it has none.

    Raises:
        UnsupportedError: a matrix that two parts share is no longer the same in both.
    """
    if not model.config.rewrites:
        return model
    config = model.config.model_copy(update={"rewrites": []})
    with torch.random.fork_rng(devices=[]):
        plain = config.build()
    assert isinstance(plain, LanguageModel), "a configuration of this kind"
    _fill(plain, _tensors(model))
    return plain.train(model.training)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model without rewrites, by its name there."""
    found: dict[str, Tensor] = {}
    held = {f"{path}{OPENED}": f"{path}." for path, module in model.named_modules()
            if isinstance(module, HoldsMatrix) and module.opened() is module}
    own = {path: module for path, module in model.named_modules() if isinstance(module, Rewritten)}
    outer = {path: module for path, module in own.items()
             if not any(path.startswith(f"{other}.") for other in own)}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not any(name.startswith(f"{path}.") for path in outer):
            found[name] = tensor
    for path, module in outer.items():
        one = module.merged()
        found |= {f"{path}.{name}": p for name, p in (("weight", one.weight), ("bias", one.bias)) if p is not None}
    return {_closed(name, held): tensor for name, tensor in found.items()}


def _closed(name: str, held: dict[str, str]) -> str:
    return next((name.replace(opened, closed, 1) for opened, closed in held.items() if name.startswith(opened)), name)


@torch.no_grad()
def _fill(plain: nn.Module, tensors: dict[str, Tensor]) -> None:
    wanted = plain.state_dict(keep_vars=True)
    assert set(wanted) == set(tensors), f"names that differ: {sorted(set(wanted) ^ set(tensors))}"
    given: dict[int, tuple[str, Tensor]] = {}
    for name, place in wanted.items():
        first, value = given.setdefault(id(place), (name, tensors[name]))
        if value is not tensors[name] and not torch.equal(value, tensors[name]):
            raise UnsupportedError(f"{name!r} shares its matrix with {first!r}, and only one of them was adapted, so "
                                   "the two cannot be one matrix.", where="rewrites",
                                   remedy="Untie them before training (readout: {kind: linear, tied: false}), or leave "
                                          f"{name.rpartition('.')[0]!r} out of the rewrite's maps.")
        place.data = value.detach().clone()

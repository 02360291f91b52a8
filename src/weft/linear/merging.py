"""Rewritten models as plain ones, with one matrix for each map, for formats that have no rewrites."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from weft.core.errors import UnsupportedError
from weft.core.model import Model
from weft.linear.law import require_same, runs
from weft.linear.linear import HoldsMatrix, Rewritten
from weft.linear.replacing import Replacement

M = TypeVar("M", bound=Model)


def merged(model: M) -> M:
    """A model without rewrites that computes what ``model`` does in evaluation mode; itself where it has none.

    Raises:
        UnsupportedError: two parts shared a matrix that is no longer the same in both.
        LawError: a merged map does not compute what the rewritten one does.
    """
    if not model.config.rewrites:
        return model
    config = model.config.with_(rewrites=[])
    with torch.random.fork_rng(devices=[]):
        plain = config.build()
    assert isinstance(plain, type(model)), "built by the same kind of configuration"
    _fill(plain, _tensors(model))
    places = [*_opened(model), *_rewritten(model)]
    pairs = [Replacement(path, module, plain.get_submodule(path)) for path, module in places if not _within(
        path, [other for other, _ in places])]
    require_same(plain, pairs, where="merging", runs=lambda: runs(model))
    return plain.train(model.training)


def put_in(replacements: Iterable[Replacement]) -> Iterator[tuple[str, Rewritten]]:
    """The modules that rewrites have put in the place of maps, with their paths."""
    return ((each.path, each.after) for each in replacements if isinstance(each.after, Rewritten))


def rewritten_maps(model: nn.Module) -> dict[str, Rewritten]:
    """Every rewritten map of a model by its first path, also one that stands in another."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Rewritten)}


def _opened(model: nn.Module) -> Iterator[tuple[str, HoldsMatrix]]:
    """Parts whose matrix has been opened (`HoldsMatrix.opened`), with their paths."""
    return ((path, module) for path, module in model.named_modules()
            if isinstance(module, HoldsMatrix) and module.opened() is module)


def _rewritten(model: nn.Module) -> Iterator[tuple[str, Rewritten]]:
    """Maps that have been rewritten, with their paths; of nested ones the outermost."""
    every = [(path, module) for path, module in model.named_modules(remove_duplicate=False)
             if isinstance(module, Rewritten)]
    return ((path, module) for path, module in every if not _within(path, [other for other, _ in every]))


def _within(path: str, others: list[str]) -> bool:
    return any(path.startswith(f"{other}.") for other in others)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model without rewrites, by its name in that model."""
    outer = dict(_rewritten(model))
    tensors = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items()
               if not _within(name, list(outer))}
    for path, module in outer.items():
        one = module.merged()
        tensors |= {f"{path}.{name}": p for name, p in (("weight", one.weight), ("bias", one.bias)) if p is not None}
    closed = closed_names(model)
    return {closed.get(name, name): tensor for name, tensor in tensors.items()}


def closed_names(model: nn.Module) -> dict[str, str]:
    """The names of the matrices and biases of opened parts in the model where these parts are not opened, by the names
    that they have as those of plain maps."""
    return {f"{path}.{module.child}.{name}": f"{path}.{own}" for path, module in _opened(model)
            for name, own in module.held.items()}


@torch.no_grad()
def _fill(plain: nn.Module, tensors: dict[str, Tensor]) -> None:
    places = plain.state_dict(keep_vars=True)
    assert set(places) == set(tensors), f"names that differ: {sorted(set(places) ^ set(tensors))}"
    filled: dict[int, tuple[str, Tensor]] = {}  # of a shared parameter, by whose name it was filled first
    for name, place in places.items():
        first, value = filled.setdefault(id(place), (name, tensors[name]))
        if value is not tensors[name] and not torch.equal(value, tensors[name]):
            raise UnsupportedError(f"{name!r} shares its matrix with {first!r}, and only one of them was adapted, so "
                                   "the two cannot be one matrix.", where="rewrites",
                                   remedy="Untie them before training (readout: {kind: linear, tied: false}), or leave "
                                          f"{name.rpartition('.')[0]!r} out of the rewrite's maps.")
        place.data = value.detach().clone().view(place.shape)

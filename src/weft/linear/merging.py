"""Rewritten models as plain ones: each map one matrix again, for formats that know no others."""

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
        UnsupportedError: a matrix that two parts share is no longer the same in both.
        LawError: a merged map does not compute what it did.
    """
    if not model.config.rewrites:
        return model
    config = model.config.model_copy(update={"rewrites": []})
    with torch.random.fork_rng(devices=[]):
        plain = config.build()
    assert isinstance(plain, type(model)), "a configuration of this kind"
    _fill(plain, _tensors(model))
    places = [*_opened(model), *_rewritten(model)]
    pairs = [Replacement(path, module, plain.get_submodule(path)) for path, module in places if not _within(
        path, [other for other, _ in places])]
    require_same(plain, pairs, where="merging", runs=lambda: runs(model))
    return plain.train(model.training)


def put_in(replacements: Iterable[Replacement]) -> Iterator[tuple[str, Rewritten]]:
    """What rewrites have put in the place of maps, with the paths."""
    return ((each.path, each.after) for each in replacements if isinstance(each.after, Rewritten))


def rewritten_maps(model: nn.Module) -> dict[str, Rewritten]:
    """Every rewritten map of a model by its first path, also one that stands in another."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Rewritten)}


def _opened(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Parts whose matrix has been opened."""
    return ((path, module) for path, module in model.named_modules()
            if isinstance(module, HoldsMatrix) and module.opened() is module)


def _rewritten(model: nn.Module) -> Iterator[tuple[str, Rewritten]]:
    """Maps that have been rewritten, the outermost where one stands in another."""
    found = [(path, module) for path, module in model.named_modules(remove_duplicate=False)
             if isinstance(module, Rewritten)]
    return ((path, module) for path, module in found if not _within(path, [other for other, _ in found]))


def _within(path: str, others: list[str]) -> bool:
    return any(path.startswith(f"{other}.") for other in others)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model without rewrites, by its name there."""
    outer = dict(_rewritten(model))
    found = {name: tensor for name, tensor in model.state_dict(keep_vars=True).items()
             if not _within(name, list(outer))}
    for path, module in outer.items():
        one = module.merged()
        found |= {f"{path}.{name}": p for name, p in (("weight", one.weight), ("bias", one.bias)) if p is not None}
    opened = [path for path, _ in _opened(model)]
    return {_closed(name, opened): tensor for name, tensor in found.items()}


def _closed(name: str, opened: list[str]) -> str:
    """The name of a tensor once the part that holds its matrix is closed again."""
    inside = next((path for path in opened if name.startswith(f"{path}.map.")), None)
    return name if inside is None else f"{inside}.{name.removeprefix(f'{inside}.map.')}"


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

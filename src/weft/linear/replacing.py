"""Replacing modules: the walk through a model that all rewrites use, in place or in a copy that shares its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from torch import nn

from weft.linear.linear import HoldsMatrix, Linear, Rewritten, allowed, child_of, opens, shallow, unadapted

M = TypeVar("M", bound=nn.Module)
FormOf: TypeAlias = Callable[[str, nn.Module], nn.Module]
"""From a module and its path in the model to its replacement, which may be the module itself."""


@dataclass(frozen=True, eq=False)
class Replacement:
    """A module that was put in the place of another.

    Attributes:
        path: of the module, the first where it has several.
        before: the module that was replaced.
    """

    path: str
    before: nn.Module
    after: nn.Module


@dataclass(frozen=True, eq=False)
class Replaced(Generic[M]):
    """A model after the walk, and its ``replacements``, outermost first."""

    model: M
    replacements: tuple[Replacement, ...]


def replaced(model: M, form_of: FormOf) -> Replaced[M]:
    """Replace every module of ``model`` by its ``form_of``, from the outside in.

    The walk goes on inside a replacement, but not into the module that it replaces, which it may contain. A module with
    several paths has one replacement at all of them, and shared parameters stay shared.
    """
    return _walk(model, form_of, copies=False)


def replaced_copy(model: M, form_of: FormOf) -> Replaced[M]:
    """`replaced` in a copy of ``model`` that shares its tensors; ``model`` is not changed."""
    return _walk(model, form_of, copies=True)


def _walk(model: Any, form_of: FormOf, *, copies: bool) -> Replaced[Any]:
    replacements: list[Replacement] = []
    done: dict[int, tuple[nn.Module, nn.Module]] = {}

    def visit(path: str, module: nn.Module) -> nn.Module:
        if id(module) in done:
            return done[id(module)][1]
        form = form_of(path, module)
        # A replacement that the walk reaches again is its own replacement. The original is stored beside it: if it were
        # freed, a new module could get the same id().
        result = shallow(form) if copies else form
        done[id(module)] = done[id(result)] = module, result
        if form is not module:
            replacements.append(Replacement(path, module, result))
        children = vars(result)["_modules"]  # `named_children` would leave out a module that has two names
        children.update({name: visit(f"{path}.{name}" if path else name, child)
                         for name, child in children.items() if child is not None and child is not module})
        return result

    return Replaced(visit("", model), tuple(replacements))


@dataclass(frozen=True, eq=False)
class Site:
    """A linear map in a model.

    Attributes:
        path: of the map; of the matrix of a `HoldsMatrix`, its path once that part is opened.
        module: the map, or the part that holds the matrix.
        own: whether the matrix is a part's own, such as a readout's or that of a recurrent network.
    """

    path: str
    module: nn.Module
    own: bool

    def map(self) -> nn.Module:
        """The map itself."""
        opened = self.module.opened() if isinstance(self.module, HoldsMatrix) else self.module
        return opened.get_submodule(opened.child) if isinstance(opened, HoldsMatrix) else opened


def sites(model: nn.Module) -> Iterator[Site]:
    """Every unadapted linear map of a model, once, in order, without the maps inside a rewritten one."""
    held = {id(module.get_submodule(module.child)) for module in model.modules()
            if isinstance(module, HoldsMatrix) and module.opened() is module}
    inside: set[int] = {id(part) for module in model.modules() if isinstance(module, Rewritten)
                        for part in module.modules() if part is not module}
    for path, module in model.named_modules():
        if id(module) in inside:
            continue
        if isinstance(module, HoldsMatrix) and opens(module):
            yield Site(child_of(path, module), module, own=True)
        elif allowed(module) or isinstance(module, Rewritten):
            yield Site(path, module, own=id(module) in held)


def as_ours(module: nn.Module) -> nn.Module:
    """A plain `torch.nn.Linear` as a `Linear` with the same parameters; any other module unchanged."""
    return Linear.of(module.weight, module.bias) if isinstance(module, nn.Linear) and unadapted(
        module, nn.Linear) else module

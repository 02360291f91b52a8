"""Putting modules in the place of others: the one walk that every rewrite takes, in a model or in a copy of it that
shares its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, final

from torch import nn

from weft.linear.linear import HoldsMatrix, Linear, Rewritten, allowed, opens
from weft.linear.untouched import untouched

M = TypeVar("M", bound=nn.Module)
FormOf: TypeAlias = Callable[[str, nn.Module], nn.Module]
"""From a module and its path in the model to what takes its place, which may be itself."""


@final
@dataclass(frozen=True, eq=False)
class Replacement:
    """A module that was put in the place of another.

    Attributes:
        path: where it stands, the first of its places.
        before: what stood there.
        after: what stands there now.
    """

    path: str
    before: nn.Module
    after: nn.Module


@final
@dataclass(frozen=True, eq=False)
class Replaced(Generic[M]):
    """A model after a walk: with ``replacements``, outermost first."""

    model: M
    replacements: tuple[Replacement, ...]


def replaced(model: M, form_of: FormOf) -> Replaced[M]:
    """``model`` with ``form_of`` of every module in the place of it, from the outside in: what comes is walked through
    in turn, but for the module that it replaces, which may stand in it. A module that stands in several places is one
    module afterwards, and parameters are what they were."""
    return _walk(model, form_of, copies=False)


def replaced_copy(model: M, form_of: FormOf) -> Replaced[M]:
    """What `replaced` gives, made of copies that share the tensors; ``model`` stays as it is."""
    return _walk(model, form_of, copies=True)


def _walk(model: Any, form_of: FormOf, *, copies: bool) -> Replaced[Any]:
    made: list[Replacement] = []
    done: dict[int, tuple[nn.Module, nn.Module]] = {}

    def visit(path: str, module: nn.Module) -> nn.Module:
        if id(module) in done:
            return done[id(module)][1]
        form = form_of(path, module)
        # The form has itself as form, where it comes again; and what it was made from is held with it: of a module that
        # is no more another may take the identity.
        found = _shallow(form) if copies else form
        done[id(module)] = done[id(found)] = module, found
        if form is not module:
            made.append(Replacement(path, module, found))
        children = vars(found)["_modules"]  # `named_children` leaves out a module that stands there twice
        children.update({name: visit(f"{path}.{name}" if path else name, child)
                         for name, child in children.items() if child is not None and child is not module})
        return found

    return Replaced(visit("", model), tuple(made))


def _shallow(module: nn.Module) -> nn.Module:
    """What `copy.copy` gives, which modules with parametrisations refuse, with lists of children and tensors of its
    own."""
    copied = object.__new__(type(module))
    vars(copied).update(vars(module))
    for registry in ("_modules", "_parameters", "_buffers"):
        vars(copied)[registry] = dict(vars(module)[registry])
    return copied


@final
@dataclass(frozen=True, eq=False)
class Site:
    """A linear map in a model.

    Attributes:
        path: of the map; of a matrix that a part holds itself, where it stands once that part is opened.
        module: the map, or the part that holds the matrix.
        own: the matrix is a part's own, such as a readout's.
    """

    path: str
    module: nn.Module
    own: bool

    def map(self) -> nn.Module:
        """The map itself."""
        opened = self.module.opened() if isinstance(self.module, HoldsMatrix) else self.module
        return opened.get_submodule("map") if isinstance(opened, HoldsMatrix) else opened


def sites(model: nn.Module) -> Iterator[Site]:
    """Every linear map of a model of which all is known, once, in order; not what stands inside of one."""
    held = {id(module.get_submodule("map")) for module in model.modules()
            if isinstance(module, HoldsMatrix) and module.opened() is module}
    inside: set[int] = {id(part) for module in model.modules() if isinstance(module, Rewritten)
                        for part in module.modules() if part is not module}
    for path, module in model.named_modules():
        if id(module) in inside:
            continue
        if opens(module):
            yield Site(f"{path}.map" if path else "map", module, own=True)
        elif allowed(module) or isinstance(module, Rewritten):
            yield Site(path, module, own=id(module) in held)


def as_ours(module: nn.Module) -> nn.Module:
    """A plain `torch.nn.Linear` as a `Linear` of the same parameters; anything else as it is."""
    return Linear.of(module.weight, module.bias) if isinstance(module, nn.Linear) and untouched(
        module, nn.Linear) else module

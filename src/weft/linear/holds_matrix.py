"""`HoldsMatrix`: parts that multiply by a parameter of their own, and how rewrites reach it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from weft.core.layer import Part
from weft.linear.linear import Rewritten
from weft.linear.unadapted import HOOKS, unadapted

M = TypeVar("M", bound=nn.Module)


class HoldsMatrix(Part, ABC):
    """A part that multiplies by a parameter of its own and not by a `Linear`, so that checkpoints name the matrix
    after the part. Rewrites reach the matrix through `opened`."""

    child: ClassVar[str] = "map"
    """The name of the `Linear` in the opened part."""
    held: ClassVar[Mapping[str, str]] = MappingProxyType({"weight": "weight", "bias": "bias"})
    """The parameters of the part itself that are those of the `Linear`, by their names in it. The matrix may have more
    dimensions in the part, with its columns in the same order."""
    calls: ClassVar[bool] = True
    """Whether the opened part calls the `Linear`; one that only reads its matrix (`read`) computes the products
    itself."""

    @abstractmethod
    def opened(self) -> HoldsMatrix:
        """An equal part in which the matrix is a child `Linear` called `child` with the same parameters; the part
        itself where it is of that kind."""

    def with_child(self, linear: nn.Module | None, *without: str) -> Self:
        """A copy that shares its tensors and has ``linear`` for the child and not the parameters ``without``."""
        copied = shallow(self)
        for name in without:
            del copied._parameters[name]
        setattr(copied, self.child, linear)
        return copied


def opens(module: nn.Module) -> bool:
    """Whether a module is an unadapted part with a matrix of its own that has not been opened. A subclass may compute
    something else, so it counts only where its own class defines `opened`."""
    own = isinstance(module, HoldsMatrix) and "opened" in vars(type(module)) and unadapted(module, type(module))
    return own and isinstance(module, HoldsMatrix) and module.opened() is not module


def reads(module: nn.Module) -> bool:
    """Whether a module is a part that reads a matrix and computes the products itself."""
    return isinstance(module, HoldsMatrix) and not module.calls


def child_of(path: str, module: HoldsMatrix) -> str:
    """The path of the `Linear` of a part at ``path``."""
    return f"{path}.{module.child}" if path else module.child


def read(linear: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The matrix of a map in ``dtype``, and its bias, for a part that computes the products itself: what was put in the
    map's place is in it. Gradients flow through both."""
    if isinstance(linear, Rewritten):
        return linear.read(dtype)
    assert isinstance(linear, nn.Linear), "a map"
    return linear.weight.to(dtype), linear.bias


def shallow(module: M) -> M:
    """A copy of a module that shares its tensors and children, with dictionaries of its own to hold them and its hooks;
    `copy.copy` refuses modules with parametrisations."""
    copied: M = object.__new__(type(module))
    vars(copied).update(vars(module))
    for registry in ("_modules", "_parameters", "_buffers", *HOOKS):
        vars(copied)[registry] = vars(module)[registry].copy()
    return copied

"""`Part`: the base of everything that a configuration builds, and the dtypes that casts leave its tensors in.

The declarations of all parts in a module together: traits, borders, facts, how far back they read.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from weft.core.compiling import Direct
from weft.core.declarations import Adjustable, Declared, HasInferenceForm, StepHooks, Trait
from weft.core.errors import InputError, nearest, refuse_unread

DECLARED = "Return it as a field of weft.core.declarations.Declared from the method `declares`."
ASKED_FOR: Mapping[type, tuple[str, ...]] = MappingProxyType({
    Adjustable: ("points",), StepHooks: ("begin_step", "after_step"), HasInferenceForm: ("inference",)})
"""What a part may define besides, which is read of parts that inherit from these classes alone."""


class Part(Direct, ABC):
    """Base of everything that a configuration builds: layers, position schemes, norms, models."""

    def declares(self) -> Declared:
        """The declarations that analyses, laws and training read. A subclass of a part that declares something
        replaces fields of ``super().declares()``."""
        return Declared()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_unread(cls, dict.fromkeys(Declared.__dataclass_fields__, DECLARED), ASKED_FOR)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Override the method that `to`, `bfloat16`, `half` and `cuda` call."""
        # A part inside one whose tensors are cast is given that one's function, which knows of all tensors inside.
        moved = fn if isinstance(fn, Cast) else Cast(fn, kept_dtypes(self))
        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self


class KeptDtypes(NamedTuple):
    """Identities of the tensors that a cast treats differently from the rest.

    Attributes:
        exact: those that stay in float32 or wider (`Declared.exact`), and their gradients.
        same: those that keep their dtype (`Declared.same_dtype`).
        wide: the parameters that narrow training computes with in float32 (`Declared.wide_in_training`).
    """

    exact: frozenset[int]
    same: frozenset[int]
    wide: frozenset[int]

    def after(self, tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
        """The dtype of a floating-point tensor after a cast to ``dtype``."""
        if id(tensor) in self.same:
            return tensor.dtype
        return torch.promote_types(dtype, torch.float32) if id(tensor) in self.exact else dtype


class Cast:
    """A function of tensors that leaves those of ``kept`` in their dtypes."""

    def __init__(self, fn: Callable[[Tensor], Tensor], kept: KeptDtypes) -> None:
        self.fn, self.kept = fn, kept

    def __call__(self, tensor: Tensor) -> Tensor:
        if id(tensor) in self.kept.exact:
            return _kept_wide(tensor, self.fn)
        result = self.fn(tensor)
        return tensor.to(result.device) if id(tensor) in self.kept.same and result.dtype != tensor.dtype else result


def kept_dtypes(module: nn.Module) -> KeptDtypes:
    """The declarations of all parts in a module about the dtypes of their tensors, which other modules may share."""
    exact, same, wide = list[Tensor](), list[Tensor](), list[Tensor]()
    for part in module.modules():
        if isinstance(part, Part):
            declared, own = _with_exact(part)
            exact += own
            same += declared.same_dtype
            wide += declared.wide_in_training
    gradients = [tensor.grad for tensor in exact if tensor.is_leaf]  # only leaves have one that is kept
    return KeptDtypes(frozenset([id(each) for each in (*exact, *gradients) if each is not None]),
                      frozenset(map(id, same)), frozenset(map(id, wide)))


def _with_exact(part: Part) -> tuple[Declared, list[Tensor]]:
    """The declarations of a part, and the tensors that it declares exact with those from which a parametrisation
    computes one of them."""
    with parametrize.cached():  # the same tensor object each time a parametrised one is read, so identities compare
        declared = part.declares()
        exact = list(declared.dynamics if declared.exact is None else declared.exact)
        if not parametrize.is_parametrized(part):
            return declared, exact
        identities = set(map(id, exact))
        sources = [each for name, each in part.get_submodule("parametrizations").named_children()
                   if id(getattr(part, name)) in identities]
    return declared, [*exact, *(tensor for each in sources for tensor in (*each.parameters(), *each.buffers()))]


def _kept_wide(tensor: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """``fn(tensor)``, or the tensor on that device in float32 if the result would be narrower."""
    if tensor.is_complex():
        with torch.no_grad():
            return torch.view_as_complex(_kept_wide(torch.view_as_real(tensor.detach()), fn))
    moved = fn(tensor)
    if moved.dtype == tensor.dtype:
        return moved
    return tensor.to(moved.device, torch.promote_types(moved.dtype, torch.float32))


def computing_dtype(module: nn.Module) -> torch.dtype | None:
    """The dtype that a module computes in: that of its first parameter that a cast does not leave as it is
    (`Declared.exact`, `Declared.wide_in_training`), or of its first parameter if there is no other; None without
    parameters."""
    kept, parameters = kept_dtypes(module), list(module.parameters())
    free = [p.dtype for p in parameters if id(p) not in kept.exact and id(p) not in kept.wide]
    return next(iter(free or [p.dtype for p in parameters[:1]]), None)


def traits_of(module: nn.Module) -> frozenset[Trait]:
    """The traits of a module and of the modules in it."""
    found, waiting = frozenset[Trait](), [module]
    while waiting:
        each = waiting.pop()
        declared = each.declares() if isinstance(each, Part) else Declared()
        if each is module or not declared.own_law:
            found |= declared.traits
            waiting += each.children()
    return found


def with_boundaries(module: nn.Module) -> list[Adjustable]:
    """The parts inside with boundaries at which recomputation for a backward pass can start."""
    return [part for part in module.modules() if isinstance(part, Adjustable) and part.kept_activations is not None]


def declared_in(module: nn.Module) -> list[Declared]:
    """The declarations of every part in a module."""
    return [part.declares() for part in module.modules() if isinstance(part, Part)]


def source_width(module: nn.Module) -> int | None:
    """The number of features of the encoded source that a part inside reads; None if no part reads one."""
    widths = [each.source_width for each in declared_in(module) if each.source_width is not None]
    return widths[0] if widths else None


def facts_of(module: nn.Module) -> dict[str, int | None]:
    """The facts of tokens that the parts inside read, by name, each with the largest number of most recent tokens of
    which a part reads it; None: all."""
    return facts_in(declared_in(module))


def facts_in(declarations: Iterable[Declared]) -> dict[str, int | None]:
    """`facts_of`, of declarations that are known already."""
    reaches: dict[str, int | None] = {}
    for declared in declarations:
        for name, reach in declared.facts.items():
            farthest = reaches.get(name, 0)
            reaches[name] = None if reach is None or farthest is None else max(reach, farthest)
    return reaches


def borders_of(module: nn.Module) -> frozenset[int]:
    """The borders that a module and the modules in it declare."""
    return frozenset(border for declared in declared_in(module) for border in declared.borders)


def require_read(facts: Mapping[str, Tensor], module: nn.Module) -> None:
    """Refuse facts of tokens that no part inside reads. Raises `InputError`: naming the nearest fact that one reads."""
    read = facts_of(module)
    for name in facts:
        if name not in read:
            hint = nearest(name, read) if read else "Its masks read none."
            raise InputError(f"no part of this model reads the fact {name!r}.", where="span.facts", remedy=hint)

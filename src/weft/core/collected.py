"""The declarations of all parts in a module together: traits, borders, facts, how far back they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from weft.core.declarations import Adjustable, Declared
from weft.core.errors import InputError, nearest
from weft.core.part import Part
from weft.core.traits import Trait


def traits_of(module: nn.Module) -> frozenset[Trait]:
    """The traits of a module and of the modules in it."""
    traits = module.declares().traits if isinstance(module, Part) else frozenset[Trait]()
    for child in module.children():
        if not (isinstance(child, Part) and child.declares().own_law):
            traits |= traits_of(child)
    return traits


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
    """Refuse facts of tokens that no part inside reads.

    Raises:
        InputError: naming the nearest fact that one reads.
    """
    read = facts_of(module)
    for name in facts:
        if name not in read:
            hint = nearest(name, read) if read else "Its masks read none."
            raise InputError(f"no part of this model reads the fact {name!r}.", where="span.facts", remedy=hint)

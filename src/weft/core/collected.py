"""What all parts in a module declare together: traits, borders, facts, how far back they look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from weft.core.errors import InputError, nearest
from weft.core.history import Lookback
from weft.core.part import Part
from weft.core.traits import Trait


def traits_of(module: nn.Module) -> frozenset[Trait]:
    """The traits of a module and everything in it."""
    found = module.own_traits() if isinstance(module, Part) else frozenset[Trait]()
    for child in module.children():
        if not (isinstance(child, Part) and child.own_law):
            found |= traits_of(child)
    return found


def with_boundaries(module: nn.Module) -> list[Part]:
    """The parts inside that hold boundaries where a backward pass can begin again."""
    return [part for part in module.modules() if isinstance(part, Part) and part.kept_activations is not None]


def source_width(module: nn.Module) -> int | None:
    """Features of the source that some part inside reads; None where none reads one."""
    widths = (part.source_width() for part in module.modules() if isinstance(part, Part))
    return next((width for width in widths if width is not None), None)


def facts_of(module: nn.Module) -> dict[str, int | None]:
    """The facts of tokens that the parts inside read, by name, with how far back some part looks; None: to the
    first."""
    found: dict[str, int | None] = {}
    for part in module.modules():
        for name, reach in part.facts().items() if isinstance(part, Part) else ():
            known = found.get(name, 0)
            found[name] = None if reach is None or known is None else max(reach, known)
    return found


def borders_of(module: nn.Module) -> frozenset[int]:
    """The borders that a module and everything in it declare."""
    return frozenset(border for part in module.modules() if isinstance(part, Part) for border in part.borders())


def lookbacks_of(module: nn.Module) -> Iterator[Lookback]:
    """The earlier tokens whose positions the parts inside read."""
    lookbacks = (part.lookback() for part in module.modules() if isinstance(part, Part))
    return (lookback for lookback in lookbacks if lookback is not None)


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

"""`part_page`: everything that a part's page in the gallery shows, gathered from the part, a plugin's too."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from in_use import InUse, in_use, mask_in_use
from part_pictures import MASKS, UNKNOWN, part_pictures

from weft.analysis.describe import describe
from weft.analysis.known_parts import MASK
from weft.core.declarations import Trait
from weft.core.errors import InputError
from weft.core.layer import Layer
from weft.core.model import Encoder
from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY
from weft.drawing.figure import Figure
from weft.index.records import Description, Entry
from weft.laws.discovery import WIDTH, subject_of
from weft.laws.subject import SOURCE_STEPS, Subject
from weft.masks import Mask, known_masks

LENGTHS = (1, 16, 256, 4096)
"""Tokens after which a state is measured."""
STATEFUL = ("mixer", "feedforward", "block", "model")
"""Groups whose parts have states of their own."""


@final
@dataclass(frozen=True)
class StateCurve:
    """The bytes of a part's state for one row.

    Attributes:
        sizes: tokens and bytes.
        config: of the example that was measured.
    """

    sizes: tuple[tuple[int, int], ...]
    config: PartConfig


@final
@dataclass(frozen=True)
class PartPage:
    """A page of the gallery.

    Attributes:
        about: documentation, fields, equation, differences, source, traits.
        state: how its state grows; None for a part without one.
        used: a configuration that works.
        examples: configurations on which the laws run; 0 for a part that no law applies to.
    """

    about: Description
    figures: tuple[Figure, ...]
    state: StateCurve | None
    used: InUse | None
    examples: int


def part_page(entry: Entry) -> PartPage:
    """The page of a part that `catalogue` lists. Raises `InputError`: pieces are missing; the message names the part
    and says what to declare."""
    about = describe(entry)
    declared = _declared(entry)
    examples = declared.examples() if issubclass(declared, PartConfig) else ()  # masks have none
    examined = len(examples) if any(subject_of(each, declared.kind) is not None for each in examples[:1]) else 0
    page = PartPage(about, tuple(part_pictures(entry.group, entry.kind)), _state(declared), _used(declared), examined)
    missing = list(_missing(page, declared))
    if missing:
        raise InputError(f"the {entry.group} {entry.kind!r} lacks {', '.join(missing)}.", where=entry.defined_in,
                         remedy="Declare them in its class: see docs/add_a_part.md.")
    return page


def _declared(entry: Entry) -> type[PartConfig] | type[Mask]:
    if entry.group == MASK:
        return next(mask for mask in known_masks() if mask.kind == entry.kind)
    return REGISTRY.get((entry.group,), entry.kind)


def _missing(page: PartPage, declared: type[PartConfig] | type[Mask]) -> Iterator[str]:
    """The pieces that a page lacks, in words; a part does not inherit its equation and differences."""
    own, base = declared.about, declared.__mro__[1].about  # type: ignore[attr-defined]
    pieces = {"a docstring": page.about.entry.summary, "`source`": page.about.entry.source,
              "`equation`": own.equation != base.equation, "`differs`": own.differs != base.differs,
              "a picture": page.figures, "a configuration that builds": page.used}
    yield from (name for name, piece in pieces.items() if not piece)
    yield from (f"the meaning of `{field.name}`" for field in page.about.fields if not field.meaning)


def _used(declared: type[PartConfig] | type[Mask]) -> InUse | None:
    if issubclass(declared, PartConfig):
        return in_use(declared)
    text = MASKS.get(declared.kind)
    if text is None:
        required = sum(each.default is each.empty for each in _parameters(declared))
        arguments = ", ".join([str(UNKNOWN)] * required)
        text = f"{declared.kind}({arguments})" if arguments else declared.kind
    return mask_in_use(text)


def _parameters(mask: type[Mask]) -> list[inspect.Parameter]:
    return list(inspect.signature(mask).parameters.values())


def _state(declared: type[PartConfig] | type[Mask]) -> StateCurve | None:
    """The growth of the state of the first example that has one beyond the clock."""
    if not issubclass(declared, PartConfig) or declared.group not in STATEFUL:
        return None
    for config in declared.examples():
        subject = subject_of(config, declared.kind, dtype=torch.float32)
        if subject is not None and not isinstance(subject.module, Encoder) and subject.stateful:
            sizes = tuple((length, state_bytes(subject, length)) for length in LENGTHS)
            return StateCurve(sizes, config)
    return None


def state_bytes(subject: Subject, length: int) -> int:
    """Bytes of the state of one row with room for ``length`` tokens, which is that of a state that has read as many."""
    generator = torch.Generator().manual_seed(0)
    reads_source = not isinstance(subject.module, Layer) or subject.module.declares().source_width is not None
    memory = subject.memory(1, generator) if reads_source else None
    horizon = length if Trait.DECLARED_LENGTH in subject.traits else None
    return subject.start(1, memory, length, horizon).nbytes()


__all__ = ["LENGTHS", "SOURCE_STEPS", "WIDTH", "PartPage", "StateCurve", "part_page", "state_bytes"]

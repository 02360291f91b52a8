"""Heads of masks: the forms of attention evaluate the rule of a mask for as many heads as it declares to differ."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from weft.core.layer import Part
from weft.laws.report import COUNT, Finding
from weft.laws.subject import Subject


def masks(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """The rule of each mask repeats after as many heads as the mask declares, on a document longer than its borders."""
    found = [part.declares().attended for part in subject.module.modules() if isinstance(part, Part)]
    for mask in dict.fromkeys(found):
        if mask is not None:
            case = f"pairs of {mask!r} in which a head differs from the one that is declared to be alike"
            yield Finding("masks", case, float(mask.undeclared()), COUNT)

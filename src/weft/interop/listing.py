"""`published`: the models of each family as they were published, with their parameters."""

from __future__ import annotations

from collections.abc import Iterator

from weft.families.family import Family, families
from weft.index.records import Published
from weft.interop.gguf.architectures import ARCHITECTURES
from weft.preset_files.models import Size


def published(only: str | None = None) -> Iterator[Published]:
    """Every published model, by family; ``only``: of one family."""
    for family in families().values():
        if only in (None, family.name):
            for size in family.sizes:
                yield entry(family, size)


def entry(family: Family, size: Size) -> Published:
    """A published model of a family."""
    model_type, architecture = ("", "") if family.native is None else (family.native.model_type,
                                                                      family.native.architecture)
    gguf = ARCHITECTURES[family.name].name if family.name in ARCHITECTURES else ""
    return Published(family.name, model_type, architecture, gguf, size.name, size.count, size.parameters,
                     agrees(size, size.count), size.source)


def agrees(size: Size, count: int) -> bool:
    """Whether a count equals the published number to its published digits; so it does where there is none."""
    if size.parameters is None:
        return True
    if size.rounded is None:
        return count == size.parameters
    return f"{count:.{size.rounded - 1}e}" == f"{size.parameters:.{size.rounded - 1}e}"

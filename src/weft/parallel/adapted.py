"""Adapters of low rank beside maps that tensor parallelism divides.

    into      W_i x + s B_i (A x)          every process has A, and the rows of B that W has
    out_of    sum W_i h_i + s B (sum A_i h_i)    every process has B, and the columns of A that W has

What passes between A and B has as many features as the rank, so that is all that is added over processes beside what
the map itself adds, in the backward pass of the first and in the forward pass of the second (`Rewritten.between`). A of
the first and B of the second have the same gradient on every process.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from weft.core.part_config import PartConfig
from weft.linear.linear import DividedDimension, Linear, Sections, unadapted
from weft.linear.lora import LoRAConfig
from weft.linear.low_rank import Adapted, LowRank, LowRankParts


def whole_rewrite(rewrite: PartConfig) -> str | None:
    """Why no map with this rewrite can be divided, in words for it; None if one can."""
    if not isinstance(rewrite, LoRAConfig):
        return f"the rewrite {rewrite.kind!r}, whose maps are not divided"
    return "the rewrite 'lora' with dora, which needs the lengths of whole rows" if rewrite.dora else None


def whole_map(module: nn.Module, into: Sections | None) -> str | None:
    """Why a map cannot be divided, in words for it; None if it can.

    Args:
        into: the stretches of its outputs, if these are divided.
    """
    if unadapted(module, Linear):
        return None
    known = type(module) in (LowRank, LowRankParts) and unadapted(module, type(module))
    if not isinstance(module, Adapted) or not known or not unadapted(module.base, Linear):
        return "has been adapted otherwise than by one LoRA"
    base, _ = base_of(module, "")
    if isinstance(module, LowRankParts) and into is not None and tuple(base.outputs.values()) != into:
        return "has adapters beside outputs that are not divided by themselves"
    return None


def base_of(module: nn.Module, at: str) -> tuple[Linear, str]:
    """The plain map under an adapter, or the map itself, with its path."""
    base, path = (module.base, f"{at}.base") if isinstance(module, Adapted) else (module, at)
    assert isinstance(base, Linear), "maps that can be divided"
    return base, path


def terms_of(module: nn.Module, at: str) -> Iterator[str]:
    """The names of the matrices of an adapter at a path; none of a plain map."""
    for place, _ in _terms(module, at):
        yield from (f"{place}.a.weight", f"{place}.b.weight")


def second_matrices(module: nn.Module, at: str) -> Iterator[str]:
    """The names of B in `terms_of`."""
    yield from (f"{place}.b.weight" for place, _ in _terms(module, at))


def along_rows(module: nn.Module, at: str, sections: Sections) -> Iterator[tuple[str, DividedDimension]]:
    """The parameters of a map, and of an adapter beside it, whose rows are divided, by their names in the model."""
    base, place = base_of(module, at)
    yield f"{place}.weight", DividedDimension(0, sections)
    if base.bias is not None:
        yield f"{place}.bias", DividedDimension(0, sections)
    for term, name in _terms(module, at):
        yield f"{term}.b.weight", DividedDimension(0, (base.outputs[name],) if name else sections)


def along_columns(module: nn.Module, at: str, sections: Sections) -> Iterator[tuple[str, DividedDimension]]:
    """As `along_rows`, of a map whose columns are divided."""
    yield f"{base_of(module, at)[1]}.weight", DividedDimension(1, sections)
    yield from ((f"{term}.a.weight", DividedDimension(1, sections)) for term, _ in _terms(module, at))


def _terms(module: nn.Module, at: str) -> Iterator[tuple[str, str]]:
    """The place of each term of an adapter, with the name of the rows that it is of."""
    for name in module.terms() if isinstance(module, Adapted) else ():
        yield f"{at}.parts.{name}" if name else at, name

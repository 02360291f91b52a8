"""Regimes: which lengths of a document share a state, for parts that treat its tokens by its length.

A rotation that depends on the document's length turns earlier keys otherwise once the document has grown, and through
them every deeper layer, so no state can be carried across such a length: the document is run anew. Decoding asks the
model where those lengths lie.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from weft.core.layer import Part
from weft.core.traits import Trait


class LengthDependent(Part, ABC):
    """A part that treats a document's tokens by the document's length."""

    def own_traits(self) -> frozenset[Trait]:
        return frozenset({Trait.DECLARED_LENGTH})

    @abstractmethod
    def regime(self, length: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """All that this part reads of a document's length: lengths of one regime are treated alike."""


def regimes(model: nn.Module, longest: int) -> Int64[Tensor, " lengths"]:
    """The regime of documents of 0 to ``longest`` tokens, numbered from 0: a state that was started for one length
    serves another if and only if both have the same number.

    A part that holds the trait DECLARED_LENGTH and does not derive from `LengthDependent` is taken to treat every
    length differently.
    """
    lengths = torch.arange(longest + 1)
    changes = torch.zeros(longest, dtype=torch.bool)
    for part in _parts(model):
        if isinstance(part, LengthDependent):
            changes |= part.regime(lengths).diff() != 0
        elif Trait.DECLARED_LENGTH in part.own_traits():
            changes[:] = True
    return torch.cat([torch.zeros(1, dtype=torch.int64), changes.cumsum(0)])


def _parts(module: nn.Module) -> Iterator[Part]:
    """The parts whose traits the module has (`weft.core.layer.traits_of`)."""
    if isinstance(module, Part):
        yield module
    for child in module.children():
        if not (isinstance(child, Part) and child.own_law):
            yield from _parts(child)

"""Regimes: which lengths of a document share a state, for parts whose output depends on that length.

Where a rotation depends on the document's length, a longer document has other keys for the same tokens, and other
values in every deeper layer, so no state can be carried across such a length: the document is run again from its
tokens. Decoding gets those lengths from `regimes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from weft.core.declarations import Declared, Trait
from weft.core.layer import Part


class LengthDependent(Part, ABC):
    """A part whose output for a token depends on the length of the document."""

    def declares(self) -> Declared:
        return Declared(traits=frozenset({Trait.DECLARED_LENGTH}))

    @abstractmethod
    def regime(self, length: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
        """The regime of each length: the output of this part depends on a document's length only through it."""


def regimes(model: nn.Module, longest: int) -> Int64[Tensor, " lengths"]:
    """The regime of documents of 0 to ``longest`` tokens, numbered from 0: a state that was started for one length
    serves another if and only if both have the same number.

    A part that holds the trait DECLARED_LENGTH and does not derive from `LengthDependent` has a
    regime for every length.
    """
    lengths = torch.arange(longest + 1)
    changes = torch.zeros(longest, dtype=torch.bool)
    for part in _parts(model):
        if isinstance(part, LengthDependent):
            changes |= part.regime(lengths).diff() != 0
        elif Trait.DECLARED_LENGTH in part.declares().traits:
            changes[:] = True
    return torch.cat([torch.zeros(1, dtype=torch.int64), changes.cumsum(0)])


def _parts(module: nn.Module) -> Iterator[Part]:
    """The parts whose traits the module has (`weft.core.layer.traits_of`)."""
    if isinstance(module, Part):
        yield module
    for child in module.children():
        if not (isinstance(child, Part) and child.declares().own_law):
            yield from _parts(child)

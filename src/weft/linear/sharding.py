"""How a part divides among processes: which of its maps lead into its heads or channels, and which out of them.

A part that can be computed in equal parts, each on a process of its own, declares a `Division`; tensor parallelism
(`weft.parallel.tensor`) reads it, so that no model needs a plan of its own. With n processes, each has 1/n of the heads
or channels:

    into      y_i = W_i x      the rows of W that lead to its heads; the gradient of x is the sum over processes
    out_of    y = sum W_i h_i  the columns of W that read its heads; the output is the sum over processes
    through   as out_of, for what heads of every process read again: the gradient of the output is a sum as well

Everything outside is the same on every process. This is the scheme of Shoeybi et al. 2019 (Megatron-LM, section 3).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, final

from weft.core.part import Part

Sections: TypeAlias = tuple[int, ...]
"""Lengths of the stretches, one after another, that are divided each by itself: queries, keys, values."""


class DividedDimension(NamedTuple):
    """The dimension along which a tensor is divided, and its stretches."""

    dim: int
    sections: Sections


@final
@dataclass(frozen=True)
class Division:
    """The division of a part among processes.

    Attributes:
        counts: the numbers that must divide, by the names of the fields that set them (``n_heads``, ``d_ff``).
        into: maps whose outputs are divided, by the name of the child, with the stretches of the outputs.
        out_of: maps whose inputs are divided, with the stretches of the inputs.
        through: as ``out_of``, where every process goes on computing its part with the output.
        along: further parameters that are divided, by their names in the part.
        summed: parameters, by name or by that of the module they are in, that every process has whole and uses for its
            own heads alone, so that their gradients are sums over processes.
    """

    counts: Mapping[str, int]
    into: Mapping[str, Sections] = field(default_factory=dict)
    out_of: Mapping[str, Sections] = field(default_factory=dict)
    through: Mapping[str, Sections] = field(default_factory=dict)
    along: Mapping[str, DividedDimension] = field(default_factory=dict)
    summed: tuple[str, ...] = ()


class Divisible(Part):
    """A part that can be computed in equal parts by several processes. A subclass may compute something else, so both
    methods count only where its own class defines them."""

    @abstractmethod
    def division(self) -> Division | str:
        """The division of a part; or why it cannot be divided, in a clause."""

    @abstractmethod
    def divide(self, parts: int, place: int) -> None:
        """Set its own numbers of heads or channels to those of one of ``parts`` equal parts, the one at ``place``. The
        caller divides maps and parameters as `division` says. What it draws at random for its heads or channels it
        then draws with `weft.ops.dropout.OwnDraws`."""

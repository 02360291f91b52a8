"""The wiring of a block as data: which norms and layers a residual stream passes, for drawings and for tests.

    entering norm -> (norm before -> layer -> norm after) of each branch -> sum with what skips them -> norm after

Numbers are indices of a block's ``norms`` and ``layers``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

Skip: TypeAlias = Literal["stream", "entering", "nothing"]
"""What is added to the branches: the stream as it enters the step, the stream after the entering norm, or nothing."""


@final
@dataclass(frozen=True)
class Branch:
    """A layer between two norms, each None where there is none."""

    layer: int
    before: int | None = None
    after: int | None = None


@final
@dataclass(frozen=True)
class Step:
    """Branches that read the same vectors, and the sum of their results.

    Attributes:
        branches: their results are added, times the block's ``branch_scale``.
        entering: the norm that all branches read through; None: they read the stream.
        skip: what is added besides.
        after: the norm of the sum.
    """

    branches: tuple[Branch, ...]
    entering: int | None = None
    skip: Skip = "stream"
    after: int | None = None


Wiring: TypeAlias = tuple[Step, ...]


def in_turn(count: int, residual: bool, *, before: bool = False, after: bool = False) -> Wiring:
    """One step for each of ``count`` layers, whose branch has the norms of a block with one or two a layer."""
    each = int(before) + int(after)
    return tuple(Step((Branch(index, each * index if before else None,
                              each * index + int(before) if after else None),),
                      skip="stream" if residual else "nothing") for index in range(count))

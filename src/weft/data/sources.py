"""The sources of a stream of tokens into which several texts were joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, final

WhenCapped: TypeAlias = Literal["share", "error"]


@final
@dataclass(frozen=True)
class JoinedSource:
    """One source of a mixture.

    Attributes:
        name: unique among the sources.
        first: place of its first token in the stream.
        last: the place after its last token.
        weight: its share of the tokens that are read, in any unit.
        max_epochs: how often it is read at most; None: as often as its weight asks.
    """

    name: str
    first: int
    last: int
    weight: float
    max_epochs: float | None = None


@final
@dataclass(frozen=True)
class Sources:
    """The sources of a stream, one after another.

    Attributes:
        each: in the order of the configuration.
        when_capped: what happens once a source has been read ``max_epochs`` times: its weight passes to the others
            (``share``), or a run in which that would happen is refused before its first step (``error``).
    """

    each: tuple[JoinedSource, ...]
    when_capped: WhenCapped = "share"

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(source.name for source in self.each)

    def weights(self) -> tuple[float, ...]:
        """Weights that add up to one."""
        whole = sum(source.weight for source in self.each)
        return tuple(source.weight / whole for source in self.each)

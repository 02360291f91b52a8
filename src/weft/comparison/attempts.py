"""What an attempt at a model is made of: its pair of seeds, and the learning rates that it tries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field
from pydantic_core import PydanticCustomError

from weft.core.config import Settings, parse
from weft.core.errors import ConfigError

Side: TypeAlias = Literal["below", "above"]
FEWEST_TRIALS = 3
FIRST_ORDER = 1000
"""The seed of the order of the data in the first of the pairs that a number of seeds stands for."""


class TrialSettings(Settings):
    """The search for a learning rate in each attempt, the same effort for each model that is trained by gradients.

    Attributes:
        count: learning rates that are tried; 1: each model keeps its own, and none is tried.
        ratio: between neighbours, which lie around the model's own.
        values: the learning rates themselves, in place of ``count`` and ``ratio``; a single one is every model's, and
            none is tried.
        share: of the training budget, for each trial; with 1 the best trial is the run.
        widest: how many more are tried on a side where a best rate lies at the edge, by every model in that attempt.
        deviation: standard deviation between the attempts at a model, in bits per byte (with ``test: paired``, of the
            difference between two models), where it is known before; None: the trials of the first two attempts show
            it.
    """

    count: int = Field(default=FEWEST_TRIALS, gt=0)
    ratio: float = Field(default=3.0, gt=1)
    values: list[Annotated[float, Field(gt=0)]] | None = Field(default=None, min_length=1)
    share: float = Field(default=0.25, gt=0, le=1)
    widest: int = Field(default=2, ge=0)
    deviation: float | None = Field(default=None, ge=0)

    @property
    def number(self) -> int:
        """How many learning rates are tried."""
        return self.count if self.values is None else len(set(self.values))

    def rates(self, own: float) -> list[float]:
        """The learning rates to begin with, rising, around a model's ``own``, which is always among them; of an even
        number, one more lies above."""
        if self.values is not None:
            return sorted(set(self.values))
        return [rounded(own * self.ratio ** (place - (self.count - 1) // 2)) for place in range(self.count)]

    def steps(self, whole: int) -> int:
        """Of a trial, for runs of ``whole`` steps."""
        return max(1, round(self.share * whole))


def rounded(rate: float) -> float:
    """To six digits, so that a rate reads as it would be written."""
    return float(f"{rate:.6g}")


def beyond(rates: Sequence[float], side: Side) -> float:
    """The next rate on a side of two or more rising ``rates``: as far from the last, by ratio, as that is from its
    neighbour."""
    edge, neighbour = (rates[0], rates[1]) if side == "below" else (rates[-1], rates[-2])
    return rounded(edge * edge / neighbour)


class Seeds(Settings):
    """One attempt: ``seed`` for the initial weights and dropout, ``order_seed`` for the order of the data."""

    seed: int = Field(ge=0)
    order_seed: int = Field(ge=0)


class SeedCount(Settings):
    """So many pairs of seeds, of which some vary and the others stay."""

    count: int = Field(gt=0)
    vary: Literal["both", "initialisation", "order"] = "both"

    def pairs(self) -> list[dict[str, int]]:
        """The numbers of a pair differ, so that both never come from one stream of random numbers."""
        return [{"seed": index if self.vary != "order" else 0,
                 "order_seed": FIRST_ORDER + (index if self.vary != "initialisation" else 0)}
                for index in range(self.count)]


def pairs_of(value: Any) -> Any:
    """The pairs that a number of seeds, or a `SeedCount` as plain data, stands for; a list as it is."""
    given = {"count": value} if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(given, Mapping):
        return given
    try:
        return parse(SeedCount, given).pairs()
    except ConfigError as error:
        problems = [each.partition(": ") for each in error.problems]
        raise PydanticCustomError("weft_part", "seeds", {
            "problems": [((name,), what) for name, _, what in problems]}) from None

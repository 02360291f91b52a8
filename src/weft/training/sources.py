"""The amounts that a run on a mixture reads of each source: expected before it, realised after it, and losses by
source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float64, Int64
from torch import Tensor

from weft.core.errors import ConfigError
from weft.core.strict_json import Record
from weft.data.mixed_batches import MixedBatches
from weft.data.mixture import Mixture, MixturePlan, Source, plan_mixture
from weft.tasks import SourcedRows
from weft.training.config import RunConfig
from weft.training.events import Event
from weft.training.parallel import World

CLOSE = 1e-3
"""Share by which what is read of a source may differ from what was expected, besides whole rows."""


@dataclass(frozen=True, eq=False)
class SourceSums:
    """Sums over the batches of a step by source: nats, predictions that count, and tokens read."""

    nats: Float64[np.ndarray, " k"]
    predictions: Int64[np.ndarray, " k"]
    tokens: Int64[np.ndarray, " k"]

    @staticmethod
    def none(sources: int) -> SourceSums:
        """Sums over no batch."""
        return SourceSums(*(np.zeros(sources, dtype=dtype) for dtype in (np.float64, np.int64, np.int64)))

    def add(self, rows: SourcedRows | None, by_row: Tensor | None) -> None:
        """Add the rows of a batch, and the nats of each; nothing for one of a single text."""
        if rows is None or by_row is None:
            return
        nats = by_row.double().cpu().numpy()
        for sums, values in ((self.nats, nats), (self.predictions, rows.predictions), (self.tokens, rows.tokens)):
            np.add.at(sums, rows.source, values)

    def of_all(self, world: World) -> SourceSums:
        """The sums of all ranks; all of them must call it."""
        size = len(self.nats)
        found = np.array(world.total(*self.nats.tolist(), *self.predictions.tolist(), *self.tokens.tolist()))
        return SourceSums(found[:size], found[size:2 * size].astype(np.int64), found[2 * size:].astype(np.int64))


@dataclass(frozen=True)
class SourceRead(Record):
    """The amount that is read of a source.

    Attributes:
        weight: its share of the tokens.
        held: tokens that one pass over it reads.
        expected: tokens that are read in the whole run, by the weights and caps.
        realised: tokens that were read; None before the run.
        capped: whether its cap lowers its share.
    """

    name: str
    weight: float
    held: float
    expected: float
    realised: int | None = None
    capped: bool = False

    def off(self, row: int) -> bool:
        """Whether more than 0.1 % and two rows of ``row`` tokens are between what was expected and what was read."""
        return self.realised is not None and abs(self.realised - self.expected) > max(CLOSE * self.expected, 2 * row)

    def cells(self) -> list[str]:
        """The source as a row of a table."""
        found = [self.name, f"{self.weight:.2%}", f"{self.held:,.0f}",
                 f"{self.expected:,.0f}" + (" (capped)" if self.capped else ""), f"{self.expected / self.held:.3f}"]
        if self.realised is None:
            return found
        off = (self.realised - self.expected) / self.expected if self.expected else 0.0
        return [*found, f"{self.realised:,}", f"{self.realised / self.held:.3f}", f"{off:+.2%}"]


@dataclass(frozen=True)
class SourcesRead(Event):
    """The sources of a run: what is expected to be read of each, and after the run also what was read."""

    name: ClassVar[str] = "sources"

    sources: tuple[SourceRead, ...]

    def line(self) -> str:
        after = self.sources[0].realised is not None
        head = ["source", "weight", "tokens held", "to read", "epochs", *(["read", "epochs", "off"] if after else [])]
        rows = [head, *(source.cells() for source in self.sources)]
        wide = [max(len(row[column]) for row in rows) for column in range(len(head))]
        return "\n".join("  ".join([row[0].ljust(wide[0]), *(cell.rjust(width) for cell, width in
                                                             zip(row[1:], wide[1:], strict=True))]) for row in rows)


def plan_sources(mixed: MixedBatches, tokens: float) -> MixturePlan:
    """The amount that a run of so many tokens reads of each source.

    Raises:
        InputError: the sources hold less than that at their caps.
        ConfigError: a source would be capped, and ``data.when_capped`` refuses that.
    """
    sources = mixed.stream.sources
    assert sources is not None, "batches of a mixture"
    plan = plan_mixture(Mixture("data.sources", "tokens", "the run's configuration", tokens, tuple(
        Source(source.name, held, weight, max_epochs=source.max_epochs) for source, held, weight in
        zip(sources.each, mixed.tokens_per_epoch, sources.weights(), strict=True))))
    if sources.when_capped == "error" and (capped := [each for each in plan.sources if each.capped]):
        raise ConfigError([f"data.sources.{each.source.name}.max_epochs: {each.source.max_epochs:g}, and the run would "
                           f"read it {each.implied:.4g} times. Train for fewer steps, raise it, lower the weight, or "
                           "set data.when_capped=share." for each in capped])
    return plan


def sources_read(mixed: MixedBatches, config: RunConfig, steps: int, step: int,
                 realised: Sequence[int] | None = None) -> SourcesRead:
    """The table of a run.

    Args:
        realised: tokens read of each source; None: not yet known.

    Raises:
        InputError: as `plan_sources`.
        ConfigError: as `plan_sources`.
    """
    plan = plan_sources(mixed, steps * config.training.accumulation * mixed.tokens_per_batch)
    known: Sequence[Any] = [None] * len(plan.sources) if realised is None else realised
    return SourcesRead(step, tuple(SourceRead(each.source.name, each.weight, each.source.size, each.read, found,
                                              each.capped)
                                   for each, found in zip(plan.sources, known, strict=True)))

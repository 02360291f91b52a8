"""Gradual unfreezing: a run begins with what lies above the blocks of a model, and trains one more block at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import Field
from torch import nn

from weft.core.part_config import Settings
from weft.training.parameter_groups import blocks_of, depths

PLACE = "training.unfreeze"


class UnfreezeSettings(Settings):
    """Gradual unfreezing (Howard and Ruder 2018, section 3.3): at first only what lies above the blocks trains, such as
    a last norm and a new head; then one more block at equal intervals, the last first, and at the end the embeddings
    with everything else before the blocks. What is frozen has no gradient, so it takes no part in clipping, decay and
    the optimiser's averages, and nothing is computed for it in the backward pass. What parts change otherwise than by
    gradients, such as running statistics, still changes.

    Attributes:
        until: share of the run after which everything trains.
        last_blocks: how many of the last blocks train from the first step.
    """

    until: float = Field(default=0.5, gt=0, lt=1)
    last_blocks: int = Field(default=0, ge=0)

    def reached(self, step: int, steps: int, n_blocks: int) -> int:
        """The largest depth (`weft.training.parameter_groups.depths`) that trains in ``step`` (from 0) of ``steps`` in
        a model of ``n_blocks``, whose embeddings have the depth n_blocks + 1."""
        stages = n_blocks + 1 - self.last_blocks
        return min(n_blocks + 1, self.last_blocks + int(stages * step / (self.until * steps)))

    def problems(self, model: nn.Module) -> list[str]:
        """Why a model cannot be unfrozen so."""
        stacks = blocks_of(model)
        if not stacks:
            return [f"{PLACE}: this model has no blocks. Leave it out."]
        largest = max(map(len, stacks))
        if self.last_blocks > largest:
            return [f"{PLACE}.last_blocks: {self.last_blocks}, and the model has {largest}. Lower it."]
        below = depths(model)
        if not any(below.get(id(p), 0) <= self.last_blocks for p in model.parameters() if p.requires_grad):
            return [f"{PLACE}.last_blocks: {self.last_blocks}, with which no parameter trains in the first step. Raise "
                    "it, or give the model a head or a last norm."]
        return []


class Unfreezing:
    """The schedule for one model: which parameters train is a function of the step alone.

    Args:
        settings: when; None: everything trains always.
    """

    def __init__(self, model: nn.Module, settings: UnfreezeSettings | None, steps: int) -> None:
        self._settings, self._steps = settings, steps
        below = {} if settings is None else depths(model)
        self._levels = [(below.get(id(p), 0), p) for p in model.parameters() if p.requires_grad]
        self._blocks = max(map(len, blocks_of(model)), default=0)

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        """A context in which only what trains in ``step`` gets gradients."""
        frozen = []
        if self._settings is not None:
            reached = self._settings.reached(step, self._steps, self._blocks)
            frozen = [parameter for level, parameter in self._levels if level > reached]
        try:
            for parameter in frozen:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)

"""Moving averages of the weights, which a run evaluates and saves in their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from pydantic import Field
from torch import Tensor, nn

from weft.core.errors import CheckpointError
from weft.core.part_config import Settings
from weft.parallel.layout import as_sharded

PREFIX = "weights."


class AverageSettings(Settings):
    """An exponential moving average of every trained weight, updated after each step k (from 0):

        a <- d a + (1-d) w,  d = min(decay, (1 + k) / (10 + k))

    Training goes on with the weights w. Evaluations measure the averages a, and checkpoints hold a as the model, so
    that everything that reads one, such as `weft eval`, `weft convert` and ``start:``, uses the averages; w is among
    the tensors for resuming. Buffers, such as running statistics, are not averaged. The smaller d of the first steps
    (as in TensorFlow's ExponentialMovingAverage) lets the random initial weights fade out soon. Polyak and Juditsky
    1992 is the plain mean.

    Attributes:
        decay: d in the long run; 1 / (1 - decay) steps are averaged.
    """

    decay: float = Field(default=0.999, ge=0, lt=1)

    def share(self, step: int) -> float:
        """1 - d: the share of the new weights after ``step``."""
        return 1 - min(self.decay, (1 + step) / (10 + step))


@final
class Average:
    """The averages of a model's trained weights.

    Args:
        model: whose weights are updated.
        settings: how they are averaged; None: not at all, and every method does nothing.
    """

    def __init__(self, model: nn.Module, settings: AverageSettings | None) -> None:
        self._settings = settings
        self._weights = {} if settings is None else {
            name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._averages = {name: parameter.detach().clone() for name, parameter in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after ``step``."""
        for name, weight in self._weights.items():
            assert self._settings is not None, "there are weights to average"
            self._averages[name].lerp_(weight, self._settings.share(step))

    def exchange(self) -> bool:
        """Put the averages in the place of the weights, or the weights back; return whether there are any. Nothing is
        copied, so that tensors that were read from the model before keep their values; of sharded weights the values
        are."""
        for name, weight in self._weights.items():
            average = self._averages[name]
            if as_sharded(weight) is not None:  # FSDP2 holds the memory of its parameters, which must stay in place
                values = weight.detach().clone()
                weight.detach().copy_(average)
                average.copy_(values)
            else:
                self._averages[name], weight.data = weight.data, average
        return bool(self._weights)

    def saved(self, name: str, weight: Tensor) -> Tensor:
        """The value of the parameter of that name in checkpoints: its average, if there is one."""
        return self._averages.get(name, weight)

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name, for resuming from a model that holds the averages."""
        return {f"{PREFIX}{name}": weight.detach() for name, weight in self._weights.items()}

    @torch.no_grad()
    def resume(self, tensors: Mapping[str, Tensor], *, where: str) -> None:
        """Take the averages from the model, and give it the weights that `tensors` returned.

        Raises:
            CheckpointError: they lack a weight.
        """
        for name, weight in self._weights.items():
            if f"{PREFIX}{name}" not in tensors:
                raise CheckpointError(f"there are no weights of {name!r} beside its average.", where=where,
                                      remedy="Resume with the configuration of the run.")
            self._averages[name] = weight.detach().clone()
            weight.copy_(tensors[f"{PREFIX}{name}"])

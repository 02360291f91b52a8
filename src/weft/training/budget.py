"""A budget in seconds, tokens, epochs or operations as a number of steps, settled once, before the first step."""

from __future__ import annotations

import math
import statistics
import time
from copy import deepcopy

import torch

from weft.core.errors import ConfigError
from weft.core.model import Model
from weft.tasks import Examples
from weft.tasks.base import batches_of
from weft.training.compute import Compute
from weft.training.config import DEFAULT_STEPS, RunConfig
from weft.training.parallel import World
from weft.training.rates import flops_per_row
from weft.training.trainer import Trainer

TIMED_STEPS = 50
SHARE = 0.05
"""Of the budget that may be spent on timing, so that a passing load does not decide; at least three steps are timed."""


def settle_steps(config: RunConfig, model: Model, examples: Examples, device: torch.device | str,
                 compute: Compute | None = None, world: World | None = None) -> int:
    """Steps of the run: as many as the budget pays for in full. Those that are timed for a budget in seconds train a
    copy of ``model``.

    Args:
        device: where to compute.
        compute: how, see `Trainer`.
        world: the ranks that train together, which all settle on the same number; None: this process alone.

    Raises:
        ConfigError: tokens or operations that do not pay for one step.
    """
    settings = config.training
    if settings.seconds is not None:
        ranks = World(torch.device(device)) if world is None else world
        return max(1, int(settings.seconds / _seconds_per_step(config, model, examples, compute, ranks)))
    task = config.made_task()
    if settings.tokens is not None:
        return _whole(settings.tokens, batches_of(task, examples).tokens_per_batch * settings.accumulation, "tokens")
    if settings.epochs is not None:
        return _steps_of_epochs(settings.epochs, batches_of(task, examples), settings.accumulation, task.name)
    if settings.flops is not None:
        batches = batches_of(task, examples)
        row = flops_per_row(model, batches.lengths)
        return _whole(settings.flops, batches.rows * settings.accumulation * row, "flops")
    return settings.steps or DEFAULT_STEPS


def _steps_of_epochs(epochs: float, batches: object, accumulation: int, task: str) -> int:
    """Steps after which every row has been read ``epochs`` times, or a part of the rows once more."""
    in_one: float | None = getattr(batches, "steps_per_epoch", None)  # not always a whole number
    if in_one is None:
        raise ConfigError([f"training.epochs: the batches of the task {task!r} do not say how many make an epoch. Give "
                           "training.steps, or its batches a property steps_per_epoch."])
    # Rounded first, since 3 epochs of 10/3 steps are 10 steps and not 11.
    return max(1, math.ceil(round(epochs * in_one / accumulation, 6)))


def tokens_per_step(config: RunConfig) -> int:
    """Inputs of one step, accumulation included, and padding, which is computed too."""
    training, task = config.training, config.task.declares()
    rows = training.batch_size * task.rows_each
    return (task.batch_tokens or rows * (task.row_tokens or config.context)) * training.accumulation


def _whole(budget: float, price: float, unit: str) -> int:
    if budget < price:
        raise ConfigError([f"training.{unit}: a budget of {budget:g}, and one step takes {price:g}. Raise it, or lower "
                           "training.batch_size or training.context."])
    return int(budget // price)


def _seconds_per_step(config: RunConfig, model: Model, examples: Examples, compute: Compute | None,
                      world: World) -> float:
    budget = config.training.seconds
    assert budget is not None, "called for a budget in seconds"
    # A step in which every block trains takes longest, so a run that unfreezes them takes at most the budget.
    config = config.with_(training={"unfreeze": None})
    trainer = Trainer(config, deepcopy(model), examples, steps=DEFAULT_STEPS, device=world.device, compute=compute,
                      world=world)
    trainer.advance()  # the first step allocates and chooses kernels
    times: list[float] = []
    begun = time.perf_counter()
    while world.lead(lambda: len(times) < 3 or (len(times) < TIMED_STEPS
                                                and time.perf_counter() - begun < SHARE * budget)):
        before = trainer.seconds
        trainer.advance()
        times.append(trainer.seconds - before)
    return float(world.lead(lambda: statistics.median(times)))

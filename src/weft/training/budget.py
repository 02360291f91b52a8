"""A budget in seconds as a number of steps, settled once, before the first step."""

from __future__ import annotations

import statistics
import time
from copy import deepcopy

import torch

from weft.core.model import LanguageModel
from weft.data import TokenStream
from weft.training.config import DEFAULT_STEPS, RunConfig
from weft.training.trainer import Trainer

TIMED_STEPS = 50
SHARE = 0.05
"""Of the budget that may be spent on timing, so that a passing load does not decide; at least three steps are timed."""


def settle_steps(config: RunConfig, model: LanguageModel, stream: TokenStream, device: torch.device | str) -> int:
    """Steps of the run. Those that are timed for a budget in seconds train a copy of ``model``."""
    settings = config.training
    if settings.seconds is None:
        return settings.steps or DEFAULT_STEPS
    return max(1, int(settings.seconds / _seconds_per_step(config, model, stream, device, settings.seconds)))


def _seconds_per_step(config: RunConfig, model: LanguageModel, stream: TokenStream, device: torch.device | str,
                      budget: float) -> float:
    trainer = Trainer(config, deepcopy(model), stream, steps=DEFAULT_STEPS, device=device)
    trainer.advance()  # the first step allocates and chooses kernels
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < 3 or (len(times) < TIMED_STEPS and time.perf_counter() - begun < SHARE * budget):
        before = trainer.seconds
        trainer.advance()
        times.append(trainer.seconds - before)
    return statistics.median(times)

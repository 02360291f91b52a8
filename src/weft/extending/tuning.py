"""The short training that follows a rescaling: the run that trained the model, with the new context and a lower
learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.checkpoints import Loaded
from weft.core.errors import InputError
from weft.core.model import ModelConfig
from weft.training import RunConfig, parse_run
from weft.training.config import BUDGETS

RATE = 0.1
"""The learning rate as a share of the run's own. After position interpolation Chen et al. 2023 train LLaMA 7B at 2e-5,
which Touvron et al. 2023 pretrained at 3e-4; that is a fifteenth."""
SCHEDULE = {"kind": "constant", "warmup": 0.02}
"""The learning-rate schedule: as in Chen et al. 2023, 20 warmup steps of 1000, then a constant rate."""


def run_with(loaded: Loaded, config: ModelConfig) -> dict[str, Any] | None:
    """Return the configuration of the run that trained the model, with another model in it; None if there was none."""
    if loaded.run is None:
        return None
    return {**loaded.run, "model": config.dump(), "training": {**loaded.run["training"], "context": None}}


def tuning_run(loaded: Loaded, start: Path, context: int, changes: Sequence[str]) -> RunConfig:
    """Return the run that trains the checkpoint ``start`` further, on the data, with the batch and by the optimiser of
    the run that trained the model.

    A step has as many tokens as in that run, rounded to whole rows of the new context.

    Args:
        loaded: the model before the extension.
        start: the checkpoint with the initial weights.
        context: length of a row, in tokens.
        changes: ``key=value``, the number of steps (``training.steps=50``) and others, such as ``data.path=books``.

    Raises:
        InputError: the checkpoint records no run.
        ConfigError: changes that are not valid.
    """
    if loaded.run is None:
        raise InputError("the checkpoint records no run, so the data for further training are unknown.",
                         where=str(loaded.path), remedy="Extend it without training, and train the "
                         "result by weft train with start: and data of your own.")
    original, old = loaded.run, loaded.run["training"]
    before = old.get("context") or loaded.config.context
    optimizer = {**old["optimizer"], "lr": old["optimizer"]["lr"] * RATE}
    settings = {**old, **dict.fromkeys(BUDGETS), "context": None, "optimizer": optimizer,
                "schedule": SCHEDULE, "batch_size": max(round(old["batch_size"] * before / context), 1)}
    plain = {key: value for key, value in original.items() if key != "model"}
    report = {**original["report"], "eval_every": None, "checkpoint_every": None, "log_every": None}
    return parse_run({**plain, "report": report, "training": settings, "start": str(start)}, changes,
                     where=str(loaded.path))

"""The short training that follows a rescaling: the run that trained the model, with the new context and a lower
learning rate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.checkpoints import Loaded
from weft.core.errors import InputError
from weft.core.model import ModelConfig
from weft.training import RunConfig, parse_run

RATE = 0.1
"""The learning rate as a share of the run's own. Chen et al. 2023, section 3.1, use 2e-5 for training after position
interpolation, and 1.5e-4 and 3e-4 in pretraining."""
SCHEDULE = {"kind": "constant", "warmup": 0.02}
"""The learning-rate schedule: as in Chen et al. 2023, 20 warmup steps of 1000, then a constant rate."""
STEPS = 100
"""Default number of steps. Most of the gain is reached by then (Chen et al. 2023, table 3: 200 steps)."""
BUDGETS = ("steps", "seconds", "tokens", "flops")


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
        changes: ``key=value``, such as ``training.steps=50`` or ``data.path=books``.

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
    settings = {**old, **dict.fromkeys(BUDGETS), "steps": STEPS, "context": None, "optimizer": optimizer,
                "schedule": SCHEDULE, "batch_size": max(round(old["batch_size"] * before / context), 1)}
    chosen = {each.partition("=")[0].removeprefix("training.") for each in changes} & set(BUDGETS)
    if chosen and "steps" not in chosen:
        settings["steps"] = None
    plain = {key: value for key, value in original.items() if key != "model"}
    report = {**original["report"], "eval_every": None, "checkpoint_every": None, "log_every": None}
    return parse_run(json.loads(json.dumps({**plain, "report": report, "training": settings, "start": str(start)})),
                     changes, where=str(loaded.path))

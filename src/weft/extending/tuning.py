"""The brief training that follows a rescaling: the run that made the model, at the new context and a lower rate."""

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
"""The learning rate, as a share of the run's own: position interpolation was trained on at 2e-5 where pretraining had
1.5e-4 and 3e-4 (Chen et al. 2023, section 3.1)."""
SCHEDULE = {"kind": "constant", "warmup": 0.02}
"""Chen et al. 2023: 20 steps of warm-up in 1000, and a constant rate."""
STEPS = 100
"""Steps, where no budget is given. Most of the gain is had by then (Chen et al. 2023, table 3: 200 steps)."""
BUDGETS = ("steps", "seconds", "tokens", "flops")


def run_with(loaded: Loaded, config: ModelConfig) -> dict[str, Any] | None:
    """The configuration of the run that made the model, with another model in it; None where there was no run."""
    if loaded.run is None:
        return None
    return {**loaded.run, "model": config.dump(), "training": {**loaded.run["training"], "context": None}}


def tuning_run(loaded: Loaded, start: Path, context: int, changes: Sequence[str]) -> RunConfig:
    """The run that trains the checkpoint ``start`` on: data, batch and optimiser of the run that made the model.

    The batch has as many tokens a step as that run's, as far as whole rows of the new context allow.

    Args:
        loaded: the model as it was.
        start: the checkpoint whose weights it begins with.
        context: tokens of a row.
        changes: ``key=value``, such as ``training.steps=50`` or ``data.path=books``.

    Raises:
        InputError: the checkpoint is of no run.
        ConfigError: changes that are wrong.
    """
    if loaded.run is None:
        raise InputError("the checkpoint is of no run, so nothing says on what it could be trained further.",
                         where=str(loaded.path), remedy="Extend it without training, and train the "
                         "result by weft train with start: and data of your own.")
    made, old = loaded.run, loaded.run["training"]
    before = old.get("context") or loaded.config.context
    optimizer = {**old["optimizer"], "lr": old["optimizer"]["lr"] * RATE}
    settings = {**old, **dict.fromkeys(BUDGETS), "steps": STEPS, "context": None, "optimizer": optimizer,
                "schedule": SCHEDULE, "batch_size": max(round(old["batch_size"] * before / context), 1)}
    chosen = {each.partition("=")[0].removeprefix("training.") for each in changes} & set(BUDGETS)
    if chosen and "steps" not in chosen:
        settings["steps"] = None
    plain = {key: value for key, value in made.items() if key != "model"}
    report = {**made["report"], "eval_every": None, "checkpoint_every": None, "log_every": None}
    return parse_run(json.loads(json.dumps({**plain, "report": report, "training": settings, "start": str(start)})),
                     changes, where=str(loaded.path))

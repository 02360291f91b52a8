"""Going on with a run: changes that resuming accepts, and a larger budget for a run that has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.errors import ConfigError
from weft.training.config import BUDGETS, RunConfig
from weft.training.folder import require_same_run


def require_same_mathematics(before: Mapping[str, Any], now: Mapping[str, Any], *, where: str) -> None:
    """Refuse to resume a run with a configuration that trains another model: all but ``report``, which says what is
    logged, measured and saved, and the budget must be the same. Raises `ConfigError`: listing every key whose value
    differs."""
    require_same_run(_that_computes(before), _that_computes(now), where=where)


def same_budget(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two runs have the same budget."""
    return all(before["training"].get(name) == now["training"].get(name) for name in BUDGETS)


def require_ahead(done: int, steps: int) -> None:
    """Check that a run that has taken ``done`` steps may have ``steps`` in all. Raises `ConfigError`: it has taken
    more."""
    if steps < done:
        raise ConfigError([f"training.steps: a budget of {steps:,} steps, and the run has taken {done:,}. Raise it, or "
                           "start a run in another folder."])


def difference(config: RunConfig, done: int, before: int, steps: int) -> str | None:
    """The settings that the ``done`` steps of a run of ``before`` steps had otherwise than those of a run of ``steps``,
    after which it goes on; None: nothing, so that it goes on exactly as the longer run from its first step would.

    The learning rate and what unfreezes may depend on the share of the run that is done.
    """
    training = config.training
    for step in range(done):
        old, new = (training.schedule.factor(step, total) for total in (before, steps))
        if old != new:
            peak = training.optimizer.lr
            return (f"step {step:,} had the learning rate {peak * old:.3g} of a run of {before:,} steps, and in one of "
                    f"{steps:,} it has {peak * new:.3g}; of schedules, constant and inverse_sqrt without a warm-up "
                    "have the same rates in both.")
    unfreeze = training.unfreeze
    if unfreeze is not None and done and before != steps:
        return f"blocks unfroze by the share of {before:,} steps, and now do by that of {steps:,}."
    return None


def _that_computes(plain: Mapping[str, Any]) -> dict[str, Any]:
    training = {key: value for key, value in plain["training"].items() if key not in BUDGETS}
    return {**{key: value for key, value in plain.items() if key != "report"}, "training": training}

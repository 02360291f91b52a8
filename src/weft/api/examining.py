"""The law and the cost of a configuration or a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weft.analysis import Plan
from weft.analysis import plan as plan_model
from weft.api.configs import presets, read_model
from weft.api.models import Model, load, require_dtype
from weft.checkpoints import Loaded
from weft.checkpoints.hub import hub_model
from weft.core.errors import InputError, nearest
from weft.core.model import ModelConfig
from weft.interop.arpa.convert import sum_error
from weft.laws.check import CheckResult
from weft.laws.check import check as check_laws

LEAST_LENGTH = 16
"""Tokens of the shortest of `check`'s long rows."""


def check(target: Model | ModelConfig, *, seed: int = 0, length: int | None = None,
          on_law: Callable[[str, str], None] | None = None) -> CheckResult:
    """The laws on a configuration (file, preset or object) or a checkpoint; see `weft.laws.check.check`.

    Raises:
        InputError: ``length`` is too short for rows to be cut.
    """
    if length is not None and length < LEAST_LENGTH:
        raise InputError(f"{length} tokens are too few to cut.", where="length",
                         remedy=f"Give {LEAST_LENGTH} or more, or leave it out.")
    found = _target(target)
    if isinstance(found, ModelConfig):
        return check_laws(found, seed=seed, length=length, on_law=on_law)
    return check_laws(found.config, found.model, seed=seed, sum_error=sum_error(found), length=length, on_law=on_law)


def plan(target: Model | ModelConfig, *, context: int | None = None, batch: int = 1, dtype: str | None = None,
         tokens: int | None = None) -> Plan:
    """What a model costs before it runs, from a configuration (file, preset or object) or a checkpoint; see
    `weft.analysis.plan`."""
    found = _target(target)
    return plan_model(found if isinstance(found, ModelConfig) else found.model, context=context, batch=batch,
                      dtype=None if dtype is None else require_dtype(dtype), tokens=tokens)


def _target(target: Model | ModelConfig) -> ModelConfig | Loaded:
    """A configuration, or a checkpoint in memory.

    Raises:
        InputError: neither a file, a preset nor a folder.
    """
    if isinstance(target, ModelConfig | Loaded):
        return target
    if Path(target).is_dir() or hub_model(target) is not None:
        return load(target)
    if not Path(target).suffix and str(target) not in presets() and not Path(target).exists():
        raise InputError(f"{str(target)!r} is neither a file, a preset nor a checkpoint.", where="target",
                         remedy=f"{nearest(str(target), presets())} Or give the path of a YAML or JSON file or of a "
                                "checkpoint's folder, or a model on the Hub as org/name.")
    return read_model(target)

"""The laws and the cost of a configuration or a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn

from weft.analysis.cost_plan import Plan
from weft.analysis.cost_plan import plan as plan_model
from weft.analysis.flops import Shares, shares_of
from weft.analysis.memory import room_problems
from weft.analysis.run_costs import run_here
from weft.api.configs import Config, forms_of, one_or_more, preset_hint, presets, read_model, training_of
from weft.api.models import Model, in_memory, load, require_device, require_dtype
from weft.checkpoints import Loaded
from weft.checkpoints.hub import hub_model
from weft.checkpoints.locate import holds_checkpoint
from weft.core.base_model import built_empty
from weft.core.config import parse
from weft.core.errors import ConfigError, InputError, UnsupportedError
from weft.core.model import ModelConfig
from weft.gpu.memory import TrainingWork, costs_on_gpu
from weft.interop.arpa.convert import sum_error
from weft.laws.check import CheckResult
from weft.laws.check import check as check_laws
from weft.laws.twin import NARROW, shrink
from weft.ops.forms import OPERATIONS
from weft.parallel.mesh import MeshSettings
from weft.parallel.tensor import plan_of
from weft.preset_files.published_models import size_named
from weft.training.config import RunConfig, TrainingSettings
from weft.training.files import read_plain
from weft.training.overrides import run_overrides
from weft.training.parameter_groups import only_trained
from weft.training.precision import narrowed

Target: TypeAlias = Model | Config
"""A checkpoint or a configuration."""
LEAST_LENGTH = 16
"""The least ``length`` of `check`, in tokens: shorter rows cannot be cut into the pieces that the laws compare."""


def check(target: Target, overrides: Iterable[str] = (), *, seed: int = 0, length: int | None = None,
          on_law: Callable[[str, str], None] | None = None) -> CheckResult:
    """Run the laws on a configuration or a checkpoint; see `weft.laws.check.check`. ``overrides`` are
    ``key.path=value`` changes to a configuration that is no object of a model.

    Raises:
        InputError: ``length`` is below `LEAST_LENGTH`, or overrides cannot be applied.
        ConfigError: even the small models that are checked are larger than this machine's memory.
    """
    if length is not None and length < LEAST_LENGTH:
        raise InputError(f"{length} tokens are too few to cut.", where="length",
                         remedy=f"Give {LEAST_LENGTH} or more, or leave it out.")
    found = resolved_target(target, overrides)
    if isinstance(found, ModelConfig):
        if problems := room_problems(built_empty(shrink(found, NARROW).config)):
            raise ConfigError(problems)
        return check_laws(found, seed=seed, length=length, on_law=on_law)
    return check_laws(found.config, found.model, seed=seed, sum_error=sum_error(found), length=length, on_law=on_law)


def plan(target: Target, overrides: Iterable[str] = (), *, context: int | None = None,
         batch: int | None = None, dtype: str | None = None, tokens: int | None = None, here: bool = False,
         device: str = "cpu") -> Plan:
    """Return what a model costs, without running it, from a configuration or a checkpoint; see
    `weft.analysis.cost_plan`. ``overrides`` are those of `check`. What ``training.train`` leaves out is frozen, and the
    forms that ``kernels`` names are those of training, unless others are forced around this call. Without a number,
    ``batch`` and ``context`` are those of the run that the configuration describes, else a row of the model's context.
    With ``here`` the memory and the least times of training and decoding are added, on the processor or on a GPU as the
    ``device``, where a configuration is planned in bfloat16.

    Raises:
        InputError: overrides cannot be applied.
    """
    overrides = one_or_more(overrides)
    found, place = resolved_target(target, overrides), require_device(device)
    source, kernels = found.model if isinstance(found, Loaded) else found, dict[str, str]()
    dtype = dtype or ("bfloat16" if place.type == "cuda" and isinstance(source, ModelConfig) else None)
    training = TrainingSettings()
    if isinstance(source, ModelConfig) and not isinstance(target, ModelConfig | Loaded | nn.Module):
        training = training_of(target, overrides)
        source = source if training.train is None else only_trained(built_empty(source), training.train)
        batch = training.batch_size if batch is None and "batch_size" in training.model_fields_set else batch
        context = training.context if context is None else context
        kernels = {name: form for name, form in forms_of(target, overrides).items()
                   if name not in OPERATIONS.forced_now()}
    planned = plan_model(source, context=context, batch=1 if batch is None else batch,
                         dtype=None if dtype is None else require_dtype(dtype), tokens=tokens, kernels=kernels)
    if here and place.type == "cuda":
        narrow = partial(narrowed, dtype=torch.bfloat16) if planned.dtype == "bfloat16" else None
        model = built_empty(source) if isinstance(source, ModelConfig) else source
        planned = replace(planned, here=costs_on_gpu(planned, TrainingWork(
            model, narrow, planned.batch, planned.context, kernels, training.compute.checkpoint_activations), place))
    elif here:
        planned = replace(planned, here=run_here(planned))
    notes = _mesh_notes(target, overrides, found) if isinstance(found, ModelConfig) else ()
    return replace(planned, notes=(*planned.notes, *notes))


def flops_shares(target: Target, overrides: Iterable[str] = (), *, context: int | None = None) -> tuple[Plan, Shares]:
    """Return where the operations of a forward pass go, per token, with what is assumed, beside the plan that they are
    from; the arguments are those of `plan`, but a row has the model's context where none is given.

    Raises:
        UnsupportedError: the model is fitted by counting, and has no such operations.
    """
    overrides = one_or_more(overrides)
    found = resolved_target(target, overrides)
    config = found.config if isinstance(found, Loaded) else found
    planned = plan_model(found.model if isinstance(found, Loaded) else found, context=context)
    if planned.flops is None:
        raise UnsupportedError(f"a model of the kind {config.kind!r} looks up counts and has no operations to share "
                               "out.", where="target", remedy="Leave out --flops.")
    size = size_named(str(target)) if isinstance(target, str) and not overrides else None
    return planned, shares_of(planned.flops, config.vocab_size if config.reads_tokens else 0,
                              {} if size is None else size.quoted)


def _mesh_notes(target: Target, overrides: Iterable[str], config: ModelConfig) -> tuple[str, ...]:
    """The tensors that the mesh of a run's configuration leaves whole on every process, where it divides models.

    Raises:
        ConfigError: heads or channels that do not divide.
    """
    if not isinstance(target, str | Path) or not Path(target).is_file():
        return ()
    plain = read_plain(target)
    given = None if "kind" in plain else run_overrides(plain, overrides).get("training")
    settings = given.get("mesh") if isinstance(given, Mapping) else None
    parts = parse(MeshSettings, settings, where=f"{target}: training.mesh").tensor if settings else 1
    if parts == 1:
        return ()
    whole = plan_of(built_empty(config), parts).whole
    listed = "; ".join(f"{path}: {why}" for path, why in whole.items())
    return (f"Tensor parallelism over {parts} processes divides the heads, channels and ids of all layers"
            + (f" but these, which every process computes whole: {listed}." if whole else "."),)


def require_changeable(target: Target, overrides: Iterable[str]) -> None:
    """Refuse overrides for what they cannot be applied to.

    Raises:
        InputError: there are overrides for a configuration object or a checkpoint.
    """
    changes = one_or_more(overrides)
    if not changes:
        return
    if isinstance(target, ModelConfig):
        raise InputError(f"{', '.join(changes)} cannot be applied to a configuration object.", where="overrides",
                         remedy="Change the configuration itself, with its model_copy.")
    if not isinstance(target, Mapping | RunConfig) and _is_checkpoint(target):
        raise InputError(f"{', '.join(changes)} cannot be applied to a checkpoint, whose weights fit its own "
                         "configuration alone.", where="overrides",
                         remedy="Leave them out, or name the configuration of the run.")


def _is_checkpoint(target: Model) -> bool:
    if isinstance(target, Loaded | nn.Module) or hub_model(target) is not None:
        return True
    folder = Path(target)
    # A preset's name means the preset, also beside a folder of that name that has nothing to do with Weft.
    return folder.is_dir() and (str(target) not in presets() or holds_checkpoint(folder))


def resolved_target(target: Target, overrides: Iterable[str]) -> ModelConfig | Loaded:
    """Return a configuration, or a checkpoint in memory.

    Raises:
        InputError: the target is neither a file, a preset nor a folder, or overrides cannot be applied to it.
    """
    changes = one_or_more(overrides)
    require_changeable(target, changes)
    if isinstance(target, nn.Module):
        return in_memory(target)
    if isinstance(target, ModelConfig | Loaded):
        return target
    if isinstance(target, Mapping | RunConfig):
        return read_model(target, changes)
    if _is_checkpoint(target):
        return load(target)
    if not Path(target).suffix and str(target) not in presets() and not Path(target).exists():
        raise InputError(f"{str(target)!r} is neither a file, a preset nor a checkpoint.", where="target",
                         remedy=f"{preset_hint(str(target))} Or give the path of a YAML or JSON file or of a "
                                "checkpoint's folder, or a model on the Hub as org/name.")
    return read_model(target, changes)

"""From a study to the runs of its models: common settings laid over each configuration, widths and steps solved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch

from weft.comparison.matching import (
    WidthPlan,
    Widths,
    apply_widths,
    flops_per_token,
    is_trained,
    look_up,
    size_of,
    solve,
    state_bytes,
    width_plan,
)
from weft.comparison.study import StudyConfig
from weft.comparison.study_settings import ModelSpec
from weft.core.base_model import built_empty
from weft.core.errors import ConfigError, UserError
from weft.tasks.next_token import NextTokenConfig
from weft.training.budget import tokens_per_step
from weft.training.config import BUDGETS, RunConfig
from weft.training.files import parse_run, read_plain
from weft.training.parallel import World
from weft.training.parameter_groups import only_trained
from weft.training.requirements import require_trainable

G = TypeVar("G")
T = TypeVar("T")
Find: TypeAlias = Callable[[str | Path], Path | Mapping[str, Any]]
"""The file of a preset or a path, or its plain data."""

SHARED = {"context": "context", "batch_size": "batch_tokens", "accumulation": "batch_tokens"}
"""Settings that all models take from the first, with what allows them to differ."""

QUANTITIES = {"parameters": "parameters", "flops": "FLOPs per token", "state_bytes": "bytes of state"}


@dataclass(frozen=True)
class Contestant:
    """A model of a study, ready to run.

    Attributes:
        run: its configuration; the number of steps is still open for a budget in seconds.
        trained: by gradients; otherwise counted.
        solved: widths that the budget was solved for.
        flops_per_token: of training; None for counting.
    """

    name: str
    run: RunConfig
    trained: bool
    solved: Widths
    flops_per_token: float | None

    @property
    def tokens_per_step(self) -> int:
        """Inputs of one step."""
        return tokens_per_step(self.run)

    def with_run(self, **changes: Any) -> Contestant:
        """The same with other values of some fields of its run, see `weft.core.part_config.Settings.with_`."""
        return replace(self, run=self.run.with_(**changes))


def contestants(study: StudyConfig, find: Find, device: str = "cpu") -> tuple[list[Contestant], list[str]]:
    """The models of a study with everything that is known before the first run, and what was changed to share it. They
    are to run on ``device``. Raises `ConfigError`: listing every problem of every model."""
    bases = _every(study.models, lambda _, spec: _plain(spec, find))
    common = _common(study, bases)
    parsed = _every(study.models, lambda name, spec: parse_run(_merged(bases[name], common), spec.overrides))
    runs, notes = share_windows(study, parsed)
    _require_alike(study, runs)
    found = _every(runs, lambda name, run: _prepared(study, name, run, device))
    if not any(each.trained for each in found.values()) and study.training_budget[0] in ("flops", "seconds"):
        raise ConfigError([f"budget: {study.training_budget[0]}, and no model of this study is trained by gradients. "
                           "Give a budget in tokens."], where="study")
    return list(found.values()), notes


def _every(given: Mapping[str, G], make: Callable[[str, G], T]) -> dict[str, T]:
    """The result of a function for each model, or one error with the problems of all."""
    found: dict[str, T] = {}
    problems: list[str] = []
    for name, value in given.items():
        try:
            found[name] = make(name, value)
        except ConfigError as error:
            problems += [f"models.{name}: {problem}" for problem in error.problems]
        except UserError as error:
            problems.append(f"models.{name}: {error}")
    if problems:
        raise ConfigError(problems, where="study")
    return found


def _plain(spec: ModelSpec, find: Find) -> dict[str, Any]:
    found = spec.config if isinstance(spec.config, Mapping) else find(spec.config)
    plain = dict(found) if isinstance(found, Mapping) else read_plain(found)
    return {"model": plain} if "kind" in plain else plain


def _common(study: StudyConfig, bases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Data, tokenizer and training that hold for all. Raises `ConfigError`: the study leaves data or tokenizer open,
    and the configurations differ."""
    common: dict[str, Any] = {"training": study.training}
    problems: list[str] = []
    for key, stated in (("data", study.data), ("tokenizer", study.tokenizer)):
        if stated is not None:
            common[key] = stated
        elif key not in study.differ:
            said = {name: plain[key] for name, plain in bases.items() if key in plain}
            if any(value != next(iter(said.values())) for value in said.values()):
                listed = "; ".join(f"{name} {value}" for name, value in said.items())
                remedy = " or allow it with `differ: [tokenizer]`" if key == "tokenizer" else ""
                problems.append(f"{key}: the models differ ({listed}). State one in the study{remedy}.")
            elif said:
                common[key] = next(iter(said.values()))
    if problems:
        raise ConfigError(problems, where="study")
    return common


def _merged(base: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that models share over a model's own; of training mapping by mapping, where a part of another kind
    replaces the whole part."""
    training = {key: value for key, value in (base.get("training") or {}).items() if key not in BUDGETS}
    for key, value in common["training"].items():
        old = training.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("kind") in (None, old.get("kind")):
            value = {**old, **value}
        training[key] = value
    return {**base, **common, "training": training}


def share_windows(study: StudyConfig, runs: Mapping[str, RunConfig]) -> tuple[dict[str, RunConfig], list[str]]:
    """Give every model the first one's context and batch, where neither the study nor a model's overrides say another
    and ``differ`` does not allow it; and say so."""
    leader, first = next(iter(runs.items()))
    shared, notes = dict(runs), []
    for key, unit in SHARED.items():
        wanted = first.context if key == "context" else getattr(first.training, key)
        for name, run in runs.items():
            own = run.context if key == "context" else getattr(run.training, key)
            stated = any(each.startswith(f"training.{key}=") for each in study.models[name].overrides)
            if own == wanted or stated or unit in study.differ:
                continue
            plain = shared[name].dump()
            plain["training"][key] = wanted
            if key == "context":
                plain["model"][key] = wanted
            shared[name] = parse_run(plain)
            notes.append(f"{name} is trained with {key.replace('_', ' ')} {wanted} like {leader}; its configuration "
                         f"says {own}.")
    return shared, notes


def _require_alike(study: StudyConfig, runs: Mapping[str, RunConfig]) -> None:
    facts: dict[str, dict[str, Any]] = {
        "data": {name: run.data.model_dump(exclude={"order_seed"}) for name, run in runs.items()},
        "tokenizer": {name: run.tokenizer.dump() for name, run in runs.items()},
        "context": {name: run.context for name, run in runs.items()},
        "batch_tokens": {name: tokens_per_step(run) for name, run in runs.items()},
        # The tokens that a checkpoint was trained for count towards no budget: all begin with it, or none does.
        "start": {name: run.start for name, run in runs.items() if is_trained(run.model)}}
    problems = []
    for key, values in facts.items():
        if key not in study.differ and any(value != next(iter(values.values())) for value in values.values()):
            listed = "; ".join(f"{name} {value}" for name, value in values.items())
            fixed = key in ("data", "start")
            remedy = "Make them alike." if fixed else f"Make them alike, or allow it with `differ: [{key}]`."
            problems.append(f"{key}: the models differ ({listed}). {remedy}")
    if problems:
        raise ConfigError(problems, where="study")


def _prepared(study: StudyConfig, name: str, run: RunConfig, device: str) -> Contestant:
    if run.task.kind != NextTokenConfig.kind:
        raise ConfigError([f"task: {run.task.kind!r}, and models are compared by how well they predict the next token. "
                           "Leave it out."])
    trained = is_trained(run.model)
    if not trained:
        return Contestant(name, run, False, {}, None)
    solved: Widths = {}
    if study.solves_width:
        spec = study.models[name]
        plan = width_plan(run.dump(), spec.solve_for, spec.multiple)
        if plan is not None:
            solved = _solve(study, name, run, plan)
            run = parse_run(apply_widths(run.dump(), solved))
    require_trainable(run, only_trained(built_empty(run.model), run.training.train), World(torch.device(device)))
    return _with_steps(study, Contestant(name, run, True, solved, flops_per_token(run)))


def _solve(study: StudyConfig, name: str, run: RunConfig, plan: WidthPlan) -> Widths:
    budget, plain = study.budget, run.dump()
    assert budget is not None, "widths are solved for a budget"
    context = budget.at_context or run.context

    def quantity(widths: Mapping[str, int]) -> float:
        candidate = parse_run(apply_widths(plain, widths))
        if budget.kind == "flops":
            return flops_per_token(candidate)
        if budget.kind == "state_bytes":
            return float(state_bytes(candidate.model, [context]).get(context, 0))
        size = size_of(candidate.model)
        return size.parameters - (0 if budget.embeddings else size.embeddings)

    target, unit = budget.amount, QUANTITIES[budget.kind]
    if budget.kind == "flops":
        assert study.length is not None, "widths are solved for FLOPs when a length is stated"
        kind, length = study.length.stated
        target /= length * (tokens_per_step(run) if kind == "steps" else 1)
    if budget.kind == "parameters" and not budget.embeddings:
        unit = "parameters without embeddings"
    own = look_up(plain, plan.first)
    assert isinstance(own, int), "a width plan names whole numbers"
    return solve(plan, quantity, target, budget.tolerance, own=own, unit=unit, where=name)


def _with_steps(study: StudyConfig, contestant: Contestant) -> Contestant:
    """The number of steps that the budget pays for; seconds are left for a measurement on this machine."""
    unit, amount = study.training_budget
    if unit == "seconds":
        return contestant.with_run(training={"seconds": amount})
    if unit == "steps":
        return contestant.with_run(training={"steps": int(amount)})
    price = float(contestant.tokens_per_step)
    if unit == "flops":
        assert contestant.flops_per_token is not None, "a model that is trained has a price"
        price *= contestant.flops_per_token
    if amount < price:
        raise ConfigError([f"a budget of {amount:g} {unit}, and one step takes {price:g}. Raise it, or lower "
                           "training.batch_size or training.context."])
    return contestant.with_run(training={"steps": int(amount // price)})

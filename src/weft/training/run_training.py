"""`train`: from a configuration to a trained model in a run folder.

Going on with a run: changes that resuming accepts, and a larger budget for a run that has ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from weft.analysis.adapter_reach import coverage
from weft.core.base_model import built_empty
from weft.core.config import parse
from weft.core.declarations import Trait
from weft.core.errors import CheckpointError, ConfigError
from weft.core.layer import traits_of
from weft.core.model import Model, built_model, trained_count
from weft.linear.rewrite import require_rewritten
from weft.ops.forms import forced
from weft.tasks import Material, Validation
from weft.tasks.base import fit_by_counting
from weft.tasks.protocols import FitsInputs
from weft.tokenizers import Tokenizer
from weft.training.among_ranks import require_same_config, require_same_text
from weft.training.budget import settle_steps, tokens_per_step
from weft.training.config import BUDGETS, RunConfig
from weft.training.events import Listener, Notice, Started
from weft.training.exchange import broadcast
from weft.training.folder import RunFolder, require_same_run
from weft.training.kept_memory import return_freed_memory
from weft.training.loop import Finish, ProgressSums, Run, descend
from weft.training.material import prepare
from weft.training.parallel import World
from weft.training.parameter_groups import only_trained
from weft.training.reference import keep_reference, with_reference
from weft.training.requirements import require_trainable
from weft.training.resuming import RunConditions, description, require_same_material, restore, terms_of, values_of
from weft.training.sinks import Sinks
from weft.training.sources import SourcesRead, sources_read
from weft.training.starting import StartWeights, begin_from, require_startable
from weft.training.trainer import Trainer


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


@dataclass(frozen=True, eq=False)
class TrainResult:
    """A finished run.

    Attributes:
        model: in evaluation mode; without weights (on the device ``meta``) where each process holds a part of it.
        tokenizer: that it was trained with.
        steps: updates of the weights; 1 for a model that was fitted by counting.
        seconds: of training, without evaluation and saving.
        best: the best checkpoint by the task's criterion, such as the fewest bits per byte.
    """

    model: Model
    tokenizer: Tokenizer
    config: RunConfig
    steps: int
    seconds: float
    validation: Validation
    checkpoint: Path
    best: Path


def train(config: RunConfig, out: str | Path, *, resume: bool = False, allow_inexact: bool = False,
          device: torch.device | str = "cpu", on_event: Listener | None = None,
          world: World | None = None) -> TrainResult:
    """Train the model of a run, by gradients or by counting, whichever it is made for.

    Ctrl-C saves a checkpoint after the current step and raises KeyboardInterrupt (SIGTERM: `Terminated`); a second one
    raises it at once. torch's random number generators and settings are restored afterwards.

    Args:
        out: its folder, see `RunFolder`.
        resume: go on from the last checkpoint in ``out``, to the weights of an uninterrupted run, bit for bit. What is
            reported and the budget may be others than before; a run that has ended goes on to a larger one.
        allow_inexact: resume even where the weights will differ, as on another processor; run.json records why.
        device: where to compute.
        on_event: called with every event, on rank 0.
        world: the connected processes that train together, each on its own device, see `weft.training.parallel`;
            None: this process alone, on ``device``. All ranks get the result.

    Raises:
        ConfigError: the configuration cannot be built or run, or ``out`` does not fit.
        DataError: the text cannot be used, or is not the one that the run began with.
        MissingExtra: ``config.report`` needs a package that is not installed.
        UnsupportedError: a resumed run would end in other weights here, or a form that ``config.kernels`` names cannot
            serve the model.
        CheckpointError: the run to resume is damaged.
        DivergedError: the loss or the weights are no longer finite, or far off; the checkpoints stay.
        TrainingError: the disk is full; the checkpoints stay.
    """
    world = World(torch.device(device)) if world is None else world
    require_same_config(world, config)
    require_trainable(config, only_trained(built_empty(config.model), config.training.train), world)
    # fork_rng always covers the CPU's generator, and with the argument that of the GPU in use.
    with (RunFolder(out, resume=resume, writes=world.leads) as folder,
          torch.random.fork_rng([world.device] if world.device.type == "cuda" else [])):
        world.last = folder.last
        record = _record(config, folder, world)
        terms = _terms(config, record, world, allow_inexact=allow_inexact)
        logged = {event["event"]: event["step"] for event in folder.metrics()}
        with terms.compute.apply(), forced(config.kernels), Sinks(config, folder.path, logged) as sinks:
            run = _prepared(config, folder, world, record, on_event, sinks)
            try:
                return _result(run, _train(run, terms, record))
            finally:
                return_freed_memory()


def build_model(config: RunConfig) -> Model:
    """The model of a run, with random weights, and what does not train frozen. Raises `ConfigError`: it cannot be
    built, or ``training.train`` reaches nothing."""
    model = built_model(config.model)
    require_rewritten(model)
    return only_trained(model, config.training.train)


def _prepared(config: RunConfig, folder: RunFolder, world: World, record: dict[str, Any] | None,
              on_event: Listener | None, sinks: Sinks) -> Run:
    """Build the model, and only then read the material of its task."""
    model, task = _fresh_model(config, world), config.made_task()
    taken = _started_from(config, model, folder, record, world)
    material = with_reference(task, model, _material(config, world), folder, world, taken)
    return Run(config, task, model, material, folder, world, on_event, sinks, taken)


def _record(config: RunConfig, folder: RunFolder, world: World) -> dict[str, Any] | None:
    """The record that `RunFolder.describe` wrote of this run; None for a new run."""
    record: dict[str, Any] | None = world.lead(lambda: folder.read() if folder.has_run else None)
    if record is not None:
        where = str(folder.path)
        # Parsed, so that a key that is newer than the record has its default.
        before = parse(RunConfig, record["config"], where=where)
        record = {**record, "config": before.dump()}
        require_same_mathematics(_anywhere(before), _anywhere(config), where=where)
    return record


def _anywhere(config: RunConfig) -> dict[str, Any]:
    """The configuration of a run without its mesh: `terms_of` compares the processes."""
    return config.with_(training={"mesh": None}).dump()


def _terms(config: RunConfig, record: dict[str, Any] | None, world: World, *, allow_inexact: bool) -> RunConditions:
    """The terms of rank 0, for all ranks: it alone times matrix products."""
    return RunConditions.from_json(world.lead(lambda: terms_of(
        config, world.device, record, allow_inexact=allow_inexact, mesh=world.mesh.settings).to_json()))


def _material(config: RunConfig, world: World) -> Material[Any]:
    material = prepare(config)
    require_same_text(world, material.corpus_sha256 + material.tokenizer.fingerprint())
    return material


def _fresh_model(config: RunConfig, world: World) -> Model:
    """The model on this rank's device, with the weights of rank 0: processors may round random weights differently."""
    torch.manual_seed(config.seed)
    model = build_model(config).to(world.device)
    broadcast(world, values_of(model))
    return model


def _started_from(config: RunConfig, model: Model, folder: RunFolder, record: dict[str, Any] | None,
                  world: World) -> StartWeights | None:
    """Copy the weights that the run starts from into the model of every rank, unless the run has a checkpoint."""
    if config.start is None:
        return None
    require_startable(config, model)
    further = record is not None and world.lead(lambda: folder.last() is not None)
    recorded = None if record is None else record.get("start")
    if further:
        return None if recorded is None else StartWeights.from_json(recorded)
    if config.training.dtype == "float64":
        model.to(torch.float64)  # before the weights are copied, which float32 would round
    taken = StartWeights.from_json(world.lead(lambda: begin_from(config, model).to_json()))
    if recorded is not None and recorded["sha256"] != taken.sha256:
        raise CheckpointError("the weights are not those that the run began with.", where=config.start,
                              remedy="Put them back, or start a run in another folder.")
    broadcast(world, values_of(model))
    return taken


def _result(run: Run, finish: Finish) -> TrainResult:
    best = Path(run.world.lead(lambda: str(run.folder.best())))
    model = built_empty(run.config.model) if run.world.mesh.splits else run.model
    return TrainResult(model.eval(), run.material.tokenizer, run.config, finish.step, finish.seconds,
                       finish.validation, finish.checkpoint, best)


def _train(run: Run, terms: RunConditions, record: dict[str, Any] | None) -> Finish:
    if record is not None:
        require_same_material(run.material, record, str(run.folder.path))
    counted = Trait.NOT_DIFFERENTIABLE in traits_of(run.model)
    return _count(run, terms, record) if counted else _descend(run, terms, record)


def _descend(run: Run, terms: RunConditions, record: dict[str, Any] | None) -> Finish:
    examples = run.material.train
    if run.taken is None and isinstance(run.task, FitsInputs):
        run.task.begin(run.model, examples)
    if record is None or not same_budget(record["config"], run.config.dump()):
        steps = settle_steps(run.config, run.model, examples, run.world.device, terms.compute, run.world)
    else:
        steps = record["steps"]
    run.world.lead(lambda: run.folder.require_places(steps))
    trainer = Trainer(run.config, run.model, examples, steps=steps, device=run.world.device, compute=terms.compute,
                      world=run.world)
    table = None if trainer.mixed is None else sources_read(trainer.mixed, run.config, steps, 0)
    known, interval = (None, ProgressSums(0.0)) if record is None else restore(run, trainer)
    require_ahead(trainer.step, steps)
    run.world.lead(lambda: _begin(run, terms, record, step=trainer.step, steps=steps))
    run.emit(_started(run, trainer.step, steps, tokens_per_step(run.config)))
    if (notice := trainer.batches.notice) is not None:
        run.emit(Notice(trainer.step, notice))
    if table is not None:
        run.emit(replace(table, step=trainer.step))
    finish = descend(run, trainer, known, interval)
    if trainer.mixed is not None:
        _check_read(run, sources_read(trainer.mixed, run.config, steps, steps, trainer.read.tolist()))
    return finish


def _check_read(run: Run, table: SourcesRead) -> None:
    """Emit what was read of each source, and a notice where that is not what was expected."""
    run.emit(table)
    if off := [each.name for each in table.sources if each.off(run.config.context)]:
        run.emit(Notice(table.step, f"read more than 0.1% more or less than expected: {', '.join(off)}. Rows of packed "
                                    "documents differ in length, which evens out over a pass."))


def _count(run: Run, terms: RunConditions, record: dict[str, Any] | None) -> Finish:
    run.folder.require_places(1)
    if record is not None:
        run.folder.forget_after(0)
    _begin(run, terms, record, step=0, steps=1)
    run.emit(_started(run, 0, 0, len(run.material.train)))
    seconds = run.timed(lambda: fit_by_counting(run.task, run.model, run.material.train))
    validation = run.evaluate(run.model, 1, seconds)
    return Finish(1, seconds, validation, run.save(1, seconds, validation, {}))


def _begin(run: Run, terms: RunConditions, record: dict[str, Any] | None, *, step: int, steps: int) -> None:
    """Write the record of the run, emit notices of what is unusual, and open the sinks."""
    inexact = [] if record is None else list(record["inexact"])
    run_id = secrets.token_hex(8) if record is None else str(record["id"])
    if terms.inexact is not None:
        inexact.append({"step": step, "reason": terms.inexact})
    if record is not None and record["steps"] != steps:
        inexact += _going_on(run, step, int(record["steps"]), steps)
    if record is None or terms.inexact is not None or record["config"] != run.config.dump():
        run.folder.describe(description(run.config, run.material, terms, steps=steps, run_id=run_id,
                                        mesh=run.world.mesh.settings, inexact=inexact, taken=run.taken))
    else:
        run.folder.complete()
    keep_reference(run.task, run.material, run.folder.path, run.taken)
    if terms.inexact is not None:
        run.emit(Notice(step, f"{terms.inexact} Going on as allowed: the weights will not be those of an "
                              "uninterrupted run."))
    for text in terms.notices:
        run.emit(Notice(step, text))
    found = run.material.validation.repeated
    if found is not None and found.told:
        run.emit(Notice(step, f"validation: {found.describe()}, so it is a weaker test of new text; "
                              f"{run.config.data.remedy}"))
    # Of a model without storage, since one that is sharded cannot be copied.
    reached = coverage(only_trained(built_empty(run.model.config), run.config.training.train),
                       run.config.context) if step == 0 and run.model.config.rewrites else None
    if reached is not None:
        run.emit(Notice(step, reached.line()))
    if run.taken is not None and step == 0:
        run.emit(Notice(step, run.taken.line()))
    run.sinks.start(run_id, run.folder.metrics())


def _going_on(run: Run, step: int, before: int, steps: int) -> list[dict[str, Any]]:
    """Say that the run goes on to another number of steps; returns what makes it inexact, for the record."""
    differs = difference(run.config, step, before, steps)
    exact = "as a run of that many from its first step would"
    run.emit(Notice(step, f"going on after {step:,} steps to {steps:,} in place of {before:,}, " + (
        f"{exact}." if differs is None else f"not {exact}: {differs}")))
    return [] if differs is None else [{"step": step, "reason": f"{before:,} steps became {steps:,}: {differs}"}]


def _started(run: Run, step: int, steps: int, per_step: int) -> Started:
    material = run.material
    return Started(step, trained_count(run.model), steps, per_step, len(material.train),
                   len(material.validation), material.corpus)
